// The request that Complete would send now, to be run elsewhere.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { chosen, drawable, prompt } from "./request.js";
import { key } from "./server.js";
import { curl, python } from "./sdks.js";
import { useStore } from "./store.js";
import { locate, path, textOf, tokensOf } from "./tree.js";

const AFTER_MS = 150;

export function Code() {
  const { tree, caret, controls, fields, model } = useStore((state) => state);
  const [whole, setWhole] = useState(false);
  const [form, setForm] = useState("curl");
  const [body, setBody] = useState(null);
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!fields) return () => {};
    let wanted = true;
    const make = async () => {
      const upTo = before(tree, caret);
      const base = { model, prompt: whole ? await prompt(fields, model, upTo, path(tree).map((node) => node.model)) : textOf(upTo), ...chosen(fields, controls) };
      const made = whole ? drawable(fields, base, tree.nodes[tree.current].seed ?? 0) : base;
      if (wanted) setBody(made);
    };
    const timer = setTimeout(() => make().catch(() => wanted && setBody(null)), AFTER_MS);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [tree, caret, controls, fields, model, whole]);
  if (!fields || !body) return html`<p class="hint">…</p>`;
  const root = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const text = (form === "curl" ? curl : python)(fields, root, body, Boolean(key.get()));
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  const choice = (name, title) => html`<button aria-pressed=${form === name} onClick=${() => setForm(name)}>${title}</button>`;
  return html`<div class="code">
    <div class="row">${choice("curl", "curl")}${choice("python", "Python SDK")}
      <button class="quiet" onClick=${copy}>${copied ? "Copied" : "Copy"}</button></div>
    <label class="row check"><input type="checkbox" checked=${whole} onChange=${(event) => setWhole(event.target.checked)} /> with all that the page itself asks for</label>
    <pre tabindex="0" aria-label="Code"><code>${text}</code></pre>
    <p class="hint">${whole ? "As the page sends it: ids where tokens were drawn, log-probabilities, a stream, and the seed of the branch shown." : "The text up to the cursor and the controls that are set, in the dialect chosen at the top."}</p>
  </div>`;
}

/** The tokens before the cursor. */
function before(tree, caret) {
  const tokens = tokensOf(tree);
  const { node, index, inner } = locate(tree, caret);
  let at = index;
  for (const one of path(tree)) {
    if (one.id === node) break;
    at += one.tokens.length;
  }
  const rest = inner ? [{ t: tokens[at].t.slice(0, inner), id: null, p: null }] : [];
  return [...tokens.slice(0, at), ...rest];
}
