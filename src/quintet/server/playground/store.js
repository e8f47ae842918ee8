// What the page shows, in one place. Views read it through `useStore`; what changes it goes through `store.set` or `change`.

import { useEffect, useState } from "./vendor/htm-preact.js";
import { newTree } from "./tree.js";

const MOST_UNDO = 500;

let state = {
  models: [],
  model: "",
  fields: null, // the chosen dialect, as server.js tells it
  dialect: "openai",
  controls: { max_tokens: 64 }, // name -> value as it is sent; "a.b" for a member
  branches: 3,
  view: "write",
  panel: "tree",
  tree: newTree(),
  caret: 0,
  undo: [], // {tree, caret}
  redo: [],
  hoist: null, // the node that the tree is shown from
  running: null, // {stop, label}
  problem: null, // {title, text}
  told: null, // what the last completion took
  asksKey: false,
  refusal: "", // what the server said to the key that was given last
  pasted: "", // the text to score
  scored: null, // what came of it: {tokens, model}; ids are of the model that scored, whichever is chosen later
  compared: null, // what Compare shows, see there
  gap: { before: "", after: "" }, // the text around the gap
  filled: { tokens: [], told: null }, // what was put into it
  form: { kind: "any", drafts: {} }, // what the output must be, as it is being written
};
const listeners = new Set();

export const store = {
  get: () => state,
  set(change) {
    state = { ...state, ...change };
    for (const listener of [...listeners]) listener(state);
  },
  subscribe(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

/** What `choose` takes of the state; the component is drawn again when that is another value. */
export function useStore(choose) {
  const [value, setValue] = useState(() => choose(state));
  useEffect(() => {
    setValue(() => choose(state));
    return store.subscribe((now) => setValue(() => choose(now)));
  }, []);
  return value;
}

let typing = null; // {at: when, caret: where} of the last step, while it is the same burst of typing

/** Another tree, as one step that can be undone. `burst`: typing that follows typing belongs to the same step. */
export function change(tree, caret, burst = false) {
  const { tree: old, caret: was, undo } = state;
  const now = performance.now();
  const same = burst && typing && now - typing.at < 1000 && typing.caret === was;
  typing = burst ? { at: now, caret } : null;
  const steps = same ? undo : [...undo.slice(-MOST_UNDO), { tree: old, caret: was }];
  store.set({ tree, caret, undo: steps, redo: same ? state.redo : [] });
}

export const undo = () => step("undo", "redo");
export const redo = () => step("redo", "undo");

function step(from, to) {
  const last = state[from].at(-1);
  if (!last || state.running) return;
  typing = null;
  const here = { tree: state.tree, caret: state.caret };
  store.set({ ...last, [from]: state[from].slice(0, -1), [to]: [...state[to], here] });
}
