// One prompt, two models or two settings, side by side: what each writes with the same seed, and where they part.

import { html, useEffect, useMemo, useState } from "./vendor/htm-preact.js";
import { Control } from "./controls.js";
import { freshSeed, report } from "./generate.js";
import { count, diff, fixed, perplexity } from "./numbers.js";
import { OWN, chosen, drawable, fieldsOf } from "./request.js";
import { run } from "./runs.js";
import { store, useStore } from "./store.js";
import { textOf, tokensOf } from "./tree.js";
import { Legend, Told, Tokens, once } from "./words.js";

const SIDES = ["A", "B"];
const NOTHING = [[], []];
const fresh = () => ({ prompt: textOf(tokensOf(store.get().tree)), sides: SIDES.map(() => ({ model: "", changes: {}, tokens: [], told: null })) });

function setSide(at, changed) {
  const { compared } = store.get();
  store.set({ compared: { ...compared, sides: compared.sides.map((side, k) => (k === at ? { ...side, ...changed } : side)) } });
}

export function Compare() {
  const compared = useStore((state) => state.compared);
  const running = useStore((state) => state.running);
  const fields = useStore((state) => state.fields);
  useEffect(() => {
    if (!store.get().compared) store.set({ compared: fresh() });
  }, []);
  const [left, right] = compared?.sides.map((side) => side.tokens) ?? NOTHING;
  const ready = left.length > 0 && right.length > 0 && !running;
  // Of two long texts that is a table of many megabytes: once, not for each key in the prompt.
  const parts = useMemo(() => (ready ? parted(left, right) : null), [left, right, ready]);
  if (!compared) return null;
  const { prompt, sides } = compared;
  return html`<section class="compare sheet" aria-label="Compare">
    <label class="stacked">Prompt of both
      <textarea rows="4" value=${prompt} spellcheck=${false} onInput=${(event) => store.set({ compared: { ...compared, prompt: event.target.value } })}></textarea></label>
    <div class="row">
      ${
        running
          ? html`<button class="main" onClick=${once(running.stop)}>Stop</button>`
          : html`<button class="main" disabled=${!fields} onClick=${both}>Compare</button>`
      }
      <button onClick=${() => store.set({ compared: { ...compared, prompt: textOf(tokensOf(store.get().tree)) } })}>Take the text of Write</button>
      <${Legend} />
    </div>
    ${parts && html`<p id="parting" role="status">${told(parts, left.length, right.length)}</p>`}
    <div class="columns">${sides.map((side, at) => html`<${Side} key=${at} at=${at} side=${side} fields=${fields} only=${parts?.only[at]} />`)}</div>
  </section>`;
}

/** Where two texts of so many tokens part, in words. */
function told({ same, common }, left, right) {
  if (same === left && same === right) return "The same to the end.";
  const first = same === 0 ? "Another token from the first on." : `The same for the first ${same === 1 ? "token" : `${count(same)} tokens`}.`;
  return `${first} ${count(common)} in common, ${count(left - common)} only in A, ${count(right - common)} only in B.`;
}

function Side({ at, side, fields, only }) {
  const models = useStore((state) => state.models);
  const shared = useStore((state) => state.model);
  const [adding, setAdding] = useState("");
  const [wrong, setWrong] = useState([]); // the controls that stay to be mended, though they change nothing
  const name = SIDES[at];
  const set = (field, value, mistyped = false) => {
    const others = wrong.filter((one) => one !== field);
    setWrong(mistyped ? [...others, field] : others);
    const changes = { ...side.changes };
    if (value === undefined) delete changes[field];
    else changes[field] = value;
    setSide(at, { changes });
  };
  const all = fields ? fieldsOf(fields).filter((field) => !(field.name in OWN)) : [];
  const shown = all.filter((field) => field.name in side.changes || field.name === adding || wrong.includes(field.name));
  return html`<section class="side" aria-label=${name}>
    <h2>${name}</h2>
    <label class="row">Model <select value=${side.model} onChange=${(event) => setSide(at, { model: event.target.value })}>
      <option value="">${shared} (as above)</option>${models.map((one) => html`<option key=${one.id} value=${one.id}>${one.id}</option>`)}</select></label>
    ${shown.map((field) => html`<${Control} key=${field.name} field=${field} value=${side.changes[field.name]} id=${`${name}-${field.name}`} set=${set} />`)}
    <label class="row">Another control <select value="" onChange=${(event) => setAdding(event.target.value)}>
      <option value="">as in the panel</option>${all.map((field) => html`<option key=${field.name} value=${field.name}>${field.name}</option>`)}</select></label>
    <${Tokens} tokens=${side.tokens} marked=${(k) => (only?.has(k) ? "only" : "")} />
    <${Told} told=${side.told} />
    ${side.tokens.length > 0 && html`<p class="told">Perplexity of what was drawn: ${fixed(perplexity(side.tokens.map((token) => token.p)))}</p>`}
  </section>`;
}

async function both() {
  const { compared, fields, model, controls } = store.get();
  const stopping = new AbortController();
  const seed = freshSeed();
  store.set({ running: { stop: () => stopping.abort(), label: "Writing" }, problem: null });
  const one = async (side, at) => {
    const base = { model: side.model || model, prompt: compared.prompt, ...chosen(fields, { ...controls, ...side.changes }) };
    setSide(at, { tokens: [], told: null });
    await run(fields, drawable(fields, base, seed), 1, ([tokens], told) => setSide(at, { tokens: [...tokens], told }), stopping.signal);
  };
  const ended = await Promise.allSettled(compared.sides.map(one));
  store.set({ running: null });
  for (const { reason } of ended) if (reason) report("The two could not be compared", reason);
}

/** How many tokens are the same at first, how many in common in all, and which are on one side only. */
function parted(left, right) {
  const texts = [left, right].map((tokens) => tokens.map((token) => token.t));
  const only = [new Set(), new Set()];
  let [same, common, i, j] = [0, 0, 0, 0];
  while (same < left.length && same < right.length && texts[0][same] === texts[1][same]) same++;
  for (const [kind] of diff(...texts)) {
    if (kind === "left") only[0].add(i++);
    else if (kind === "right") only[1].add(j++);
    else {
      common++;
      i++;
      j++;
    }
  }
  return { same, common, only };
}
