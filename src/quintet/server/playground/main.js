// The page: what stands at the top, the views, the panels beside them.

import { h, html, render, useEffect } from "./vendor/htm-preact.js";
import { report } from "./generate.js";
import { KeyDialog } from "./key.js";
import { kept } from "./kept.js";
import { Panels } from "./panels.js";
import { key, dialect, models } from "./server.js";
import { store, useStore } from "./store.js";
import { Surprise } from "./surprise.js";
import { Write } from "./write.js";
import { Compare } from "./compare.js";
import { Fill } from "./fill.js";

const DIALECTS = { openai: "OpenAI", fireworks: "Fireworks", together: "Together", cerebras: "Cerebras", novita: "Novita" };
const VIEWS = { write: ["Write", Write], surprise: ["Surprise", Surprise], compare: ["Compare", Compare], fill: ["Fill", Fill] };

async function connect() {
  try {
    const found = await models();
    const { model } = store.get();
    store.set({ models: found, model: found.some((one) => one.id === model) ? model : (found[0]?.id ?? "") });
  } catch (error) {
    report("The models could not be listed", error);
  }
}

let spoken = ""; // the dialect that was chosen last: the fields of one before it may come later

async function speak(name) {
  spoken = name;
  try {
    const fields = await dialect(name);
    if (spoken === name) store.set({ fields, dialect: name });
  } catch (error) {
    report("The dialect's fields could not be read", error);
  }
}

function Top() {
  const { models, model, dialect, view } = useStore((state) => state);
  const tab = ([name, [title]]) => html`<button key=${name} aria-current=${view === name ? "page" : "false"} onClick=${() => store.set({ view: name, problem: null })}>${title}</button>`;
  return html`<header class="top">
    <h1>Quintet</h1>
    <nav aria-label="Views">${Object.entries(VIEWS).map(tab)}</nav>
    <div class="choices">
      <label>Model <select value=${model} onChange=${(event) => store.set({ model: event.target.value })}>
        ${models.map((one) => html`<option key=${one.id} value=${one.id}>${one.id}</option>`)}</select></label>
      <label>Dialect <select value=${dialect} onChange=${(event) => speak(event.target.value)}>
        ${Object.entries(DIALECTS).map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}</select></label>
      <button class="quiet" onClick=${() => store.set({ asksKey: true })}>${key.get() ? "Key set" : "Key"}</button>
    </div>
  </header>`;
}

function Problem() {
  const problem = useStore((state) => state.problem);
  return html`<div role="alert" class="alert">${
    problem &&
    html`<div class="problem"><strong>${problem.title}.</strong> <span>${problem.text}</span>
      <button class="quiet" onClick=${() => store.set({ problem: null })}>Dismiss</button></div>`
  }</div>`;
}

function App() {
  const view = useStore((state) => state.view);
  useEffect(() => {
    kept()
      .catch((error) => report("What this browser had kept could not be read", error))
      .finally(() => {
        connect(); // with the model and the dialect that were kept
        speak(store.get().dialect);
      });
  }, []);
  return html`<${Top} /><${Problem} />
    <div class="work"><main id="view">${h(VIEWS[view][1])}</main><${Panels} /></div>
    <${KeyDialog} connect=${connect} />`;
}

store.subscribe((state) => document.body.toggleAttribute("data-busy", state.running !== null));
const host = document.getElementById("app");
host.replaceChildren();
render(html`<${App} />`, host);
