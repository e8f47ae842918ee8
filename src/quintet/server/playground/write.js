// The view in which a text is written, and the keys that work there.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Alternatives, useLooking } from "./alternatives.js";
import { editor } from "./editor.js";
import { alternatives, complete, goOn } from "./generate.js";
import { redo, store, undo, useStore } from "./store.js";
import { treeKey } from "./moves.js";
import { Legend, Told, once } from "./words.js";

export function Write() {
  const host = useRef(null);
  const made = useRef(null);
  const [looked, setLooked] = useState(null); // {node, index, span, focus}
  useEffect(() => {
    made.current = editor(host.current);
    return () => made.current.stop();
  }, []);
  useLooking(host, (span) => made.current.tokenAt(span), setLooked);

  const keys = (event) => {
    made.current.heed();
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
  const { tree, model } = store.get();
  const node = looked && tree.nodes[looked.node];
  const token = node?.tokens[looked.index];
  const ask = (signal) => alternatives(looked.node, looked.index, signal);
  const choose = (one) => goOn(looked.node, looked.index, one);
  return html`<section class="write" aria-label="Write" onKeyDown=${keys}>
    <div id="text" class="text" ref=${host} contenteditable="true" role="textbox" aria-multiline="true" aria-label="Text"
      aria-describedby="keys" spellcheck=${false} data-placeholder="Write a beginning, then let the model go on." tabindex="0"></div>
    <${Bar} editor=${made} />
    ${token && html`<${Alternatives} token=${token} span=${looked.span} focus=${looked.focus} close=${close} ask=${ask} choose=${choose}
      own=${node.model === null || node.model === model} />`}
  </section>`;
}

function Bar({ editor }) {
  const running = useStore((state) => state.running);
  const branches = useStore((state) => state.branches);
  const told = useStore((state) => state.told);
  const canUndo = useStore((state) => state.undo.length > 0 && !state.running);
  const canRedo = useStore((state) => state.redo.length > 0 && !state.running);
  const step = (what) => {
    what();
    editor.current.setCaret(store.get().caret);
  };
  // To begin and to stop are one button: the focus stays on it, and Escape is heard.
  return html`<div class="bar">
    <div class="row">
      ${
        running
          ? html`<button class="main" onClick=${once(running.stop)}>Stop <kbd>Esc</kbd></button>`
          : html`<button class="main" onClick=${() => complete(1)}>Complete <kbd>Ctrl ↵</kbd></button>`
      }
      <span class="joined">
        <button disabled=${running} onClick=${() => complete(branches)}>Branch <kbd>Ctrl Space</kbd></button>
        <label class="hidden" for="branches">Number of branches</label>
        <input id="branches" type="number" min="1" max="16" value=${branches}
          onChange=${(event) => store.set({ branches: Math.min(16, Math.max(1, Math.trunc(Number(event.target.value)) || 1)) })} />
      </span>
      <button disabled=${!canUndo} onClick=${() => step(undo)}>Undo</button>
      <button disabled=${!canRedo} onClick=${() => step(redo)}>Redo</button>
      <${Told} told=${told} />
    </div>
    <div class="row small">
      <${Legend} />
      <span id="keys" class="hint">Ctrl . opens a token's alternatives, Alt and arrows walk the tree</span>
    </div>
  </div>`;
}
