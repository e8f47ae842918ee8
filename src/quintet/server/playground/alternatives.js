// The likeliest tokens in the place of one, beside it: percentages, entropy, and going on from any of them.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { TEN } from "./generate.js";
import { bits, entropy, fixed, percent, shade, shown } from "./numbers.js";
import { store } from "./store.js";

const HOVER_MS = 250;

/**
 * Look at the token that is under the mouse, or was tapped, after a moment; at the same while the mouse is in what is shown of it, the text
 * and the model are as they were, and until Escape.
 */
export function useLooking(host, tokenAt, setLooked) {
  useEffect(() => {
    let timer = 0;
    const over = (event) => {
      clearTimeout(timer);
      const span = event.target.closest?.(".token");
      if (event.target.closest?.(".alternatives")) return;
      if (span && host.current.contains(span)) {
        const wait = event.type === "click" ? 0 : HOVER_MS;
        timer = setTimeout(() => !store.get().running && span.isConnected && setLooked({ ...tokenAt(span), focus: false }), wait);
      } else timer = setTimeout(() => setLooked((now) => (now?.focus ? now : null)), HOVER_MS);
    };
    const escape = (event) => event.key === "Escape" && setLooked(null);
    let was = store.get();
    const away = store.subscribe((state) => {
      if (state.running || state.tree !== was.tree || state.model !== was.model) setLooked(null);
      was = state;
    });
    document.addEventListener("mouseover", over);
    document.addEventListener("keydown", escape);
    host.current.addEventListener("click", over);
    return () => {
      away();
      clearTimeout(timer);
      document.removeEventListener("mouseover", over);
      document.removeEventListener("keydown", escape);
    };
  }, []);
}

/**
 * Args: the token, its element, whether the keyboard goes there, `ask(signal)` for the alternatives, `choose(token)` for going on, and
 * whether the token's id is one of the model that is asked.
 */
export function Alternatives({ token, span, focus, close, ask, choose, own = true }) {
  const [found, setFound] = useState(null);
  const [failed, setFailed] = useState("");
  const box = useRef(null);
  useEffect(() => {
    const stopping = new AbortController();
    setFound(null);
    setFailed("");
    ask(stopping.signal).then(setFound, (error) => error.name !== "AbortError" && setFailed(error.message));
    return () => stopping.abort();
  }, [token]);
  useLayoutEffect(() => {
    const again = () => place(box.current, span);
    again();
    document.addEventListener("scroll", again, true);
    return () => document.removeEventListener("scroll", again, true);
  }, [span, found]);
  useEffect(() => {
    if (focus && found) box.current.querySelector("button.chosen, button")?.focus();
  }, [found, focus]);

  const keys = (event) => {
    const buttons = [...box.current.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "ArrowDown") buttons[Math.min(at + 1, buttons.length - 1)]?.focus();
    else if (event.key === "ArrowUp") buttons[Math.max(at - 1, 0)]?.focus();
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const take = (one) => {
    close();
    choose({ t: one.t, id: one.id, p: one.p });
  };
  const same = (one) => (own ? one.id === token.id : one.t === token.t); // another model's id is another token here
  const row = (one) => html`<li key=${one.id}>
    <button class=${same(one) ? "chosen" : ""} aria-current=${same(one) ? "true" : "false"} onClick=${() => take(one)}>
      <meter min="0" max="1" value=${Math.exp(one.p)} aria-hidden="true"></meter>
      <span class="piece">${shown(one.t)}</span><span class="figure">${percent(one.p)}</span></button></li>`;
  const unlisted = own && token.p !== null && !found?.some(same);
  return html`<div class="alternatives" role="dialog" aria-label=${`Alternatives to ${shown(token.t)}`} ref=${box} onKeyDown=${keys}>
    <p class="head"><span class=${`piece ${shade(token.p)}`}>${shown(token.t)}</span>
      <span class="figure">${token.p === null ? "probability not known here" : `${percent(token.p)} · ${fixed(bits(token.p))} bits`}</span></p>
    ${failed && html`<p class="problem">${failed}</p>`}
    ${!found && !failed && html`<p class="hint">Asking for the likeliest ${TEN} …</p>`}
    ${found && html`<ol>${found.map(row)}${unlisted && row(token)}</ol>`}
    ${found && html`<p class="hint">Entropy ${fixed(entropy(found.map((one) => one.p)))} bits, of these ${found.length} and all others as one. Before temperature.</p>`}
  </div>`;
}

/** Put the box beneath the token, or above it where there is no room. */
function place(box, span) {
  if (!box || !span.isConnected) return;
  const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const below = at.bottom + 6 + height <= innerHeight;
  box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - height - 6)}px`;
}
