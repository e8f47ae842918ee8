// The view in which a text is written, and the keys that work there.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Alternatives } from "./alternatives.js";
import { editor } from "./editor.js";
import { complete } from "./generate.js";
import { SHADES, count, fixed } from "./numbers.js";
import { redo, store, undo, useStore } from "./store.js";
import { treeKey } from "./moves.js";

const HOVER_MS = 250;

export function Write() {
  const host = useRef(null);
  const made = useRef(null);
  const [looked, setLooked] = useState(null); // {node, index, span, focus}
  useEffect(() => {
    made.current = editor(host.current);
    return () => made.current.stop();
  }, []);
  useLooking(host, made, setLooked);

  const keys = (event) => {
    const { running, branches } = store.get();
    const command = event.ctrlKey || event.metaKey;
    if (command && event.key === "Enter") complete(1);
    else if (event.ctrlKey && event.code === "Space") complete(branches);
    else if (command && event.key === ".") open();
    else if (event.key === "Escape" && running) running.stop();
    else if (!treeKey(event, made.current)) return;
    event.preventDefault();
  };
  const open = () => {
    const found = made.current.tokenAt(made.current.spanAtCaret());
    if (found) setLooked({ ...found, focus: true });
  };
  const close = () => {
    setLooked(null);
    host.current.focus();
  };
  return html`<section class="write" aria-label="Write" onKeyDown=${keys}>
    <div id="text" class="text" ref=${host} contenteditable="true" role="textbox" aria-multiline="true" aria-label="Text"
      aria-describedby="keys" spellcheck=${false} data-placeholder="Write a beginning, then let the model go on." tabindex="0"></div>
    <${Bar} editor=${made} />
    ${looked && html`<${Alternatives} ...${looked} close=${close} />`}
  </section>`;
}

/** What is under the mouse, or was tapped, after a moment; nothing while the mouse is in what is shown of it. */
function useLooking(host, made, setLooked) {
  useEffect(() => {
    let timer = 0;
    const over = (event) => {
      clearTimeout(timer);
      const span = event.target.closest?.(".token");
      if (event.target.closest?.(".alternatives")) return;
      if (span && host.current.contains(span)) {
        const wait = event.type === "click" ? 0 : HOVER_MS;
        timer = setTimeout(() => !store.get().running && span.isConnected && setLooked({ ...made.current.tokenAt(span), focus: false }), wait);
      } else timer = setTimeout(() => setLooked((now) => (now?.focus ? now : null)), HOVER_MS);
    };
    const away = store.subscribe((state) => state.running && setLooked(null));
    document.addEventListener("mouseover", over);
    host.current.addEventListener("click", over);
    return () => {
      away();
      clearTimeout(timer);
      document.removeEventListener("mouseover", over);
    };
  }, []);
}

function Bar({ editor }) {
  const running = useStore((state) => state.running);
  const branches = useStore((state) => state.branches);
  const canUndo = useStore((state) => state.undo.length > 0 && !state.running);
  const canRedo = useStore((state) => state.redo.length > 0 && !state.running);
  const step = (what) => {
    what();
    editor.current.setCaret(store.get().caret);
  };
  return html`<div class="bar">
    <div class="row">
      ${
        running
          ? html`<button class="main" key="stop" onClick=${running.stop}>Stop <kbd>Esc</kbd></button>`
          : html`<button class="main" key="complete" onClick=${() => complete(1)}>Complete <kbd>Ctrl ↵</kbd></button>`
      }
      <span class="joined">
        <button disabled=${running} onClick=${() => complete(branches)}>Branch <kbd>Ctrl Space</kbd></button>
        <label class="hidden" for="branches">Number of branches</label>
        <input id="branches" type="number" min="1" max="16" value=${branches}
          onChange=${(event) => store.set({ branches: Math.min(16, Math.max(1, Math.trunc(Number(event.target.value)) || 1)) })} />
      </span>
      <button disabled=${!canUndo} onClick=${() => step(undo)}>Undo</button>
      <button disabled=${!canRedo} onClick=${() => step(redo)}>Redo</button>
      <${Told} />
    </div>
    <div class="row small">
      <span class="legend" aria-label="Colours by probability">${SHADES.map((title, k) => html`<span key=${k} class=${`swatch p${k}`}>${title}</span>`)}</span>
      <span id="keys" class="hint">Ctrl . opens a token's alternatives, Alt and arrows walk the tree</span>
    </div>
  </div>`;
}

/** What the last completion took. */
function Told() {
  const told = useStore((state) => state.told);
  const running = useStore((state) => state.running);
  if (!told) return html`<p class="told" role="status">${running?.label ?? ""}</p>`;
  const { began, first, last, tokens, usage, ends } = told;
  const seconds = first === null ? 0 : (last - first) / 1000;
  const parts = [`${count(tokens)} tokens`];
  if (first !== null) parts.push(`first after ${fixed(first - began, 0)} ms`);
  if (seconds > 0 && tokens > 1) parts.push(`${fixed((tokens - 1) / seconds, 1)} tokens/s`);
  if (usage) parts.push(`prompt ${count(usage.prompt)}${usage.cached === null ? "" : `, ${count(usage.cached)} cached`}`);
  if (ends.length) parts.push(`ended: ${[...new Set(ends)].join(", ")}`);
  return html`<p class="told" role="status" aria-live=${running ? "off" : "polite"}>${parts.join(" · ")}</p>`;
}
