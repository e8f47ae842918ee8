// Every field of the chosen dialect, as the server's own document describes it.

import { html, useState } from "./vendor/htm-preact.js";
import { become, leave } from "./form.js";
import { OWN, fieldsOf } from "./request.js";
import { store, useStore } from "./store.js";

const FIRST = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "repetition_penalty", "frequency_penalty", "presence_penalty"];

export function Controls() {
  const dialect = useStore((state) => state.fields);
  const controls = useStore((state) => state.controls);
  const [sought, setSought] = useState("");
  const [resets, setResets] = useState(0);
  if (!dialect) return html`<p class="hint">Reading the dialect’s fields …</p>`;
  const all = fieldsOf(dialect).filter((field) => field.name.includes(sought.trim()));
  const rank = (field) => (FIRST.includes(field.name) ? FIRST.indexOf(field.name) : FIRST.length);
  const mine = all.filter((field) => !(field.name in OWN)).sort((a, b) => rank(a) - rank(b));
  const groups = [
    ["Of the page", mine.filter((field) => !field.extension)],
    ["Beyond the page", mine.filter((field) => field.extension)],
  ];
  const known = new Set(fieldsOf(dialect).map((field) => field.name));
  const idle = Object.keys(controls).filter((name) => !known.has(name));
  const reset = () => {
    setResets(resets + 1); // what could not be sent is forgotten as well
    become("any"); // else the form's controls would be back as soon as it is looked at
    store.set({ controls: {} });
  };
  return html`<div class="controls">
    <div class="row"><label class="grow"><span class="hidden">Find a control</span>
      <input type="search" placeholder="Find a control" value=${sought} onInput=${(event) => setSought(event.target.value)} /></label>
      <button onClick=${reset}>Reset all</button></div>
    <p class="hint"><a href=${`docs#${dialect.name}`}>All fields of the page</a>, with a request to try for each.</p>
    ${idle.length > 0 && html`<p class="problem">Not in this dialect, and not sent: ${idle.join(", ")}.</p>`}
    ${groups.map(([title, fields]) => fields.length > 0 && html`<h2 key=${title}>${title}</h2>${fields.map((field) => html`<${Control} key=${`${field.name} ${resets}`} field=${field} value=${controls[field.name]} />`)}`)}
    <h2>Set by the page</h2>
    <dl class="own">${all.filter((field) => field.name in OWN).map((field) => html`<div key=${field.name}><dt><code>${field.name}</code></dt><dd>${OWN[field.name]}</dd></div>`)}</dl>
  </div>`;
}

function setControl(name, value) {
  leave(name);
  const controls = { ...store.get().controls };
  if (value === undefined) delete controls[name];
  else controls[name] = value;
  store.set({ controls });
}

export function Control({ field, value, id = `control-${field.name}`, set = setControl }) {
  const [wrong, setWrong] = useState(null); // {text, words}: what was written, which stays to be mended, and why it is not sent
  const give = ({ value: text, validity }) => {
    try {
      if (validity.badInput) throw new Error("This must be a number."); // a box of numbers has no text of what is none
      set(field.name, text === "" ? undefined : parsed(field, text));
      setWrong(null);
    } catch (error) {
      set(field.name, undefined, true); // what was right before is not what is shown
      setWrong({ text, words: error.message });
    }
  };
  return html`<div class=${value === undefined ? "control" : "control set"}>
    <label for=${id}><code>${field.name}</code></label>
    <${Input} field=${field} id=${id} value=${value} give=${give} wrong=${wrong} />
    <p id=${`${id}-note`} class="note">${wrong ? html`<span class="wrong">${wrong.words}</span>` : field.note}</p>
  </div>`;
}

function Input({ field, id, value, give, wrong }) {
  const common = { id, "aria-describedby": `${id}-note`, "aria-invalid": wrong ? "true" : "false", onChange: (event) => give(event.target) };
  const kind = kindOf(field);
  const shown = wrong ? wrong.text : value === undefined ? "" : kind === "json" && typeof value !== "string" ? JSON.stringify(value) : String(value);
  if (Array.isArray(kind))
    return html`<select ...${common} value=${shown}><option value="">${field.preset}</option>${kind.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>`;
  if (kind === "number") {
    const [one] = field.choices;
    const step = one.type === "integer" ? 1 : "any";
    // Of text that is no number after another, or after nothing, the browser tells no change.
    const left = ({ target }) => (wrong || target.validity.badInput) && give(target);
    return html`<input ...${common} onBlur=${left} type="number" step=${step} min=${one.minimum ?? one.exclusiveMinimum} max=${one.maximum} value=${shown} placeholder=${field.preset} />`;
  }
  if (kind === "text") return html`<input ...${common} type="text" value=${shown} placeholder=${field.preset} spellcheck=${false} />`;
  return html`<textarea ...${common} rows="1" value=${shown} placeholder=${field.preset === "unset" ? "JSON" : field.preset} spellcheck=${false}></textarea>`;
}

/** "number", "text", a list of words, or "json" for all that has more than one form. */
function kindOf(field) {
  const [one, ...more] = field.choices;
  if (more.length || !one) return "json";
  if (one.enum) return one.enum.map(String);
  if (one.type === "boolean") return ["true", "false"];
  if (one.type === "integer" || one.type === "number") return "number";
  return one.type === "string" ? "text" : "json";
}

function parsed(field, text) {
  const kind = kindOf(field);
  const [one] = field.choices;
  if (Array.isArray(kind)) return one.enum ? one.enum.find((word) => String(word) === text) : text === "true";
  if (kind === "number") {
    const value = Number(text);
    if (one.type === "integer" && !Number.isSafeInteger(value)) throw new Error("This must be an integer that a browser can write: at most 2^53.");
    return value;
  }
  if (kind === "text") return text;
  try {
    return JSON.parse(text);
  } catch {
    // What may be a string as well need not be quoted, unless it may be meant as something else.
    if (!field.choices.some((choice) => choice.type === "string" || choice.enum)) throw new Error("This must be JSON.");
    if (/^\s*["[{]/.test(text)) throw new Error("This must be JSON; a text that begins like it must be quoted, as JSON has it.");
    return text;
  }
}
