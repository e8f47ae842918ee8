// The request that the view would send now, to be run elsewhere.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { ground } from "./characters.js";
import { chosen, drawable, prompt, scoring } from "./request.js";
import { dialect, key } from "./server.js";
import { curl, python } from "./sdks.js";
import { useStore } from "./store.js";
import { locate, readable, textOf, tokensOf } from "./tree.js";

const AFTER_MS = 150;

export function Code() {
  const state = useStore((all) => all);
  const [whole, setWhole] = useState(false);
  const [form, setForm] = useState("curl");
  const [asked, setAsked] = useState(null); // {fields, bodies}
  const [copied, setCopied] = useState(false);
  const { view, tree, caret, controls, fields, model, pasted, gap, compared } = state;
  useEffect(() => {
    if (!fields) return () => {};
    let wanted = true;
    const make = async () => {
      const made = await REQUESTS[view](state, whole);
      if (wanted) setAsked(made);
    };
    const timer = setTimeout(() => make().catch(() => wanted && setAsked(null)), AFTER_MS);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [view, tree, caret, controls, fields, model, pasted, gap, compared, whole]);
  if (!asked) return html`<p class="hint">…</p>`;
  const root = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const text = asked.bodies.map((body) => (form === "curl" ? curl : python)(asked.fields, root, body, Boolean(key.get()))).join("\n\n");
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  const choice = (name, title) => html`<button aria-pressed=${form === name} onClick=${() => setForm(name)}>${title}</button>`;
  return html`<div class="code">
    <div class="row">${choice("curl", "curl")}${choice("python", "Python SDK")}
      ${navigator.clipboard && html`<button class="quiet" onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`}</div>
    <label class="row check"><input type="checkbox" checked=${whole} onChange=${(event) => setWhole(event.target.checked)} /> with all that the page itself asks for</label>
    <pre tabindex="0" aria-label="Code"><code>${text}</code></pre>
    <p class="hint">${whole ? "As the page sends it: ids where tokens were drawn, log-probabilities, a stream, and the seed of the branch shown." : "What this view asks for, with the controls that are set."}</p>
  </div>`;
}

/** What each view asks for: the dialect that it is sent in, and the bodies. */
const REQUESTS = {
  async write({ tree, caret, controls, fields, model }, whole) {
    const upTo = whole ? await sent(tree, caret, fields, model) : textOf(tokensOf(tree)).slice(0, caret);
    const base = { model, prompt: upTo, ...chosen(fields, controls) };
    return { fields, bodies: [whole ? drawable(fields, base, tree.nodes[tree.current].seed ?? 0) : base] };
  },
  async surprise({ pasted, model }) {
    return { fields: await dialect("openai"), bodies: [scoring(model, pasted)] };
  },
  async compare({ compared, controls, fields, model }, whole) {
    const bodies = compared.sides.map((side) => ({ model: side.model || model, prompt: compared.prompt, ...chosen(fields, { ...controls, ...side.changes }) }));
    return { fields, bodies: whole ? bodies.map((body) => drawable(fields, body, 0)) : bodies };
  },
  async fill({ gap, controls, model }, whole) {
    const fields = await dialect("openai");
    const base = { model, prompt: gap.before, suffix: gap.after, ...chosen(fields, controls) };
    return { fields, bodies: [whole ? drawable(fields, base, 0) : base] };
  },
};

/** The prompt of a completion at the cursor. */
async function sent(tree, caret, fields, model) {
  const [cut, node, lead] = await ground(tree, model, locate(tree, caret), []);
  return prompt(fields, model, [...readable(cut, model, node), ...lead]);
}
