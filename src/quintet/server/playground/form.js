// What the output must be: a JSON schema, a grammar, a regular expression; whether that is valid is told while it is being written.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { chosen } from "./request.js";
import { complete } from "./server.js";
import { store, useStore } from "./store.js";
import { textOf } from "./tree.js";

const AFTER_MS = 400;
const FORMS = {
  any: { title: "Anything" },
  json: { title: "JSON schema", start: '{\n  "type": "object",\n  "properties": {\n    "name": {"type": "string"},\n    "age": {"type": "integer"}\n  },\n  "required": ["name", "age"]\n}' },
  grammar: { title: "Grammar (GBNF or Lark)", start: 'root ::= "yes" | "no"' },
  regex: { title: "Regular expression", start: "[0-9]{4}-[0-9]{2}-[0-9]{2}" },
};
const NAMES = ["response_format.type", "response_format.json_schema", "response_format.grammar", "structured_outputs.regex"];

/** The controls of a form. Throws where its text is not what it should be. */
function controlsOf(kind, text) {
  if (kind === "json") return { "response_format.type": "json_schema", "response_format.json_schema": parsed(text) };
  if (kind === "grammar") return { "response_format.type": "grammar", "response_format.grammar": text };
  if (kind === "regex") return { "structured_outputs.regex": text };
  return {};
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const at = /position (\d+)/.exec(error.message);
    if (!at) throw error;
    const before = text.slice(0, Number(at[1])).split("\n");
    throw new Error(`Line ${before.length}, column ${before.at(-1).length + 1}: ${error.message}`);
  }
}

/** Put these in place of the controls that a form sets. */
function heed(controls) {
  const others = Object.entries(store.get().controls).filter(([name]) => !NAMES.includes(name));
  store.set({ controls: { ...Object.fromEntries(others), ...controls } });
}

let checks = 0; // how many were begun: of two that run at once the later one counts

/** Another form. The one before is given up: what is still being checked of it is not heeded any more. */
export function become(kind) {
  heed({});
  turn(kind);
}

/** A control is set by hand: if it is a form's, none is kept to any more, or looking at it would set the control back. */
export function leave(name) {
  if (NAMES.includes(name)) turn("any");
}

function turn(kind) {
  checks++;
  store.set({ form: { ...store.get().form, kind } });
}

export function Form() {
  const { kind, drafts } = useStore((state) => state.form);
  const fields = useStore((state) => state.fields);
  const model = useStore((state) => state.model);
  const [state, setState] = useState({ valid: true, words: "" });
  const text = drafts[kind] ?? FORMS[kind].start ?? "";
  const unchecked = useRef(null); // what checks the text as it is now, until that is done

  useEffect(() => {
    unchecked.current = null;
    if (!fields || kind === "any") return () => {};
    const stopping = new AbortController();
    const check = async (signal) => {
      const mine = ++checks;
      setState({ valid: null, words: "Checking …" });
      let [controls, valid, words] = [{}, true, "Valid, and heeded from now on."];
      try {
        controls = controlsOf(kind, text);
        await complete(fields, { model, prompt: " ", max_tokens: 0, ...chosen(fields, controls) }, signal);
      } catch (error) {
        if (error.name === "AbortError") return;
        [controls, valid, words] = [{}, false, error.message]; // what is not valid is not sent
      }
      if (mine !== checks) return;
      unchecked.current = null;
      heed(controls);
      setState({ valid, words });
    };
    unchecked.current = check;
    const timer = setTimeout(() => check(stopping.signal), AFTER_MS);
    return () => {
      clearTimeout(timer);
      stopping.abort();
    };
  }, [kind, text, fields, model]);
  useEffect(() => () => unchecked.current?.(), []); // who opens another panel before that means the text as it is now all the same

  const choose = (event) => {
    setState({ valid: true, words: "" });
    become(event.target.value); // merely looking at this panel changes no control
  };
  const write = (event) => store.set({ form: { kind, drafts: { ...drafts, [kind]: event.target.value } } });
  return html`<div class="form">
    <label class="stacked">The output must be
      <select id="form-kind" value=${kind} onChange=${choose}>${Object.entries(FORMS).map(([name, { title }]) => html`<option key=${name} value=${name}>${title}</option>`)}</select></label>
    ${
      kind !== "any" &&
      html`<label class="stacked">${FORMS[kind].title}
        <textarea id="form-text" rows="14" value=${text} spellcheck=${false} aria-invalid=${state.valid === false} aria-describedby="form-state" onInput=${write}></textarea></label>`
    }
    <p id="form-state" role="status" class=${state.valid === false ? "wrong" : "hint"}>${state.words}</p>
    ${kind === "json" && html`<${Written} />`}
  </div>`;
}

/** Whether what was written last is whole JSON. */
function Written() {
  const node = useStore((state) => state.tree.nodes[state.tree.current]);
  if (node.seed === null || node.tokens.length === 0) return null;
  let whole = true;
  try {
    JSON.parse(textOf(node.tokens));
  } catch {
    whole = false;
  }
  return html`<p class="hint">The branch shown is ${whole ? "whole, valid JSON" : "not whole JSON (yet)"}.</p>`;
}
