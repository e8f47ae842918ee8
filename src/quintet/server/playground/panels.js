// The panels beside the view: tree, controls, output's form, code. One at a time.

import { h, html } from "./vendor/htm-preact.js";
import { Code } from "./code.js";
import { Controls } from "./controls.js";
import { Form } from "./form.js";
import { TreePanel } from "./treepanel.js";
import { store, useStore } from "./store.js";

const PANELS = { tree: ["Tree", TreePanel], controls: ["Controls", Controls], form: ["Output", Form], code: ["Code", Code] };

export function Panels() {
  const panel = useStore((state) => state.panel);
  const names = Object.keys(PANELS);
  const keys = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(panel) + step + names.length) % names.length];
    store.set({ panel: next });
    document.getElementById(`tab-${next}`).focus();
  };
  return html`<aside class="panels" aria-label="Panels">
    <div role="tablist" aria-label="Panels" onKeyDown=${keys}>
      ${names.map(
        (name) => html`<button role="tab" key=${name} id=${`tab-${name}`} aria-selected=${panel === name} aria-controls="panel"
          tabindex=${panel === name ? 0 : -1} onClick=${() => store.set({ panel: name })}>${PANELS[name][0]}</button>`,
      )}
    </div>
    <div role="tabpanel" id="panel" aria-labelledby=${`tab-${panel}`} tabindex="0">${h(PANELS[panel][1])}</div>
  </aside>`;
}
