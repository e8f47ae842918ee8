// Completing: at the cursor, from another token, in several branches; stop; the alternatives of a token.

import { amid, ground, spelled } from "./characters.js";
import { change, store } from "./store.js";
import { chosen, drawable, ids, prompt } from "./request.js";
import { run } from "./runs.js";
import { Refused, key, likeliest } from "./server.js";
import { addChild, locate, readable, textOf, tokensOf, update } from "./tree.js";

export const TEN = 10;

/** Show what went wrong; a missing key is asked for. */
export function report(title, error) {
  if (error.name === "AbortError") return;
  const keyless = error instanceof Refused && error.status === 401;
  store.set({ problem: { title, text: error.message }, asksKey: keyless || store.get().asksKey }); // a dialog that is open stays so
  if (keyless && key.get()) store.set({ refusal: error.message });
}

export const freshSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

/** Complete the text up to the cursor. What stands behind it stays, as a branch of its own. */
export function complete(count) {
  const { tree, caret } = store.get();
  return grow(locate(tree, caret), count, [], null);
}

/** Go on from a token of the text's node `id` at `index`, or from another in its place. */
export function goOn(id, index, token) {
  const { tree } = store.get();
  return grow({ node: id, index, inner: 0 }, 1, [token], tree.nodes[id].seed);
}

/** What is gone on from later: without the token that ended a text, which cannot be seen and would begin another document. */
const written = (tokens, why) => (why && why !== "length" && tokens.at(-1)?.t === "" ? tokens.slice(0, -1) : tokens);

/** The tree and the cursor when new branches have these tokens: it follows the text's end. */
function given(children, tokens) {
  let { tree, caret } = store.get();
  const follows = caret >= textOf(tokensOf(tree)).length;
  children.forEach((child, k) => {
    if (tree.nodes[child]) tree = update(tree, child, { tokens: tokens[k] });
  });
  return { tree, caret: follows ? textOf(tokensOf(tree)).length : caret };
}

/**
 * Let `count` new branches grow from a place of the text.
 * token: [the one that each begins with], or []. seed: null = the one that was set, or a new one.
 */
async function grow(place, count, token, seed) {
  if (store.get().running) return;
  const { fields, model, controls, ...was } = store.get();
  if (!fields) return;
  let came = false;
  const stopping = new AbortController();
  const label = count > 1 ? `Writing ${count} branches` : "Writing";
  store.set({ running: { stop: () => stopping.abort(), label }, problem: null, told: null });
  try {
    const [tree, parent, lead] = await ground(was.tree, model, place, token, stopping.signal);
    const before = [...readable(tree, model, parent), ...lead];
    const base = { model, prompt: await prompt(fields, model, before, stopping.signal), ...chosen(fields, controls) };
    if (count > 1) base.n = count;
    if (seed !== null) base.seed = seed;
    const body = drawable(fields, base, freshSeed());
    const { prompt: _, n, ...asked } = base;
    const children = [];
    let grown = tree;
    for (let k = 0; k < count; k++) {
      const [made, id] = addChild(grown, parent, { tokens: lead, seed: body.seed + k, model, asked });
      grown = made;
      children.push(id);
    }
    change({ ...grown, current: children[0] }, textOf(before).length);
    const show = (lists, told) => {
      came ||= told.tokens > 0;
      const tokens = children.map((_, k) => [...lead, ...written(lists[k], told.ends[k])]);
      store.set({ ...given(children, tokens), told });
    };
    const mend = async () => {
      if (!amid(lead)) return; // else an answer's own texts are right: it begins where a character does
      const { nodes } = store.get().tree;
      const tokens = await Promise.all(children.map((child) => spelled(model, nodes[child].tokens, lead.length)));
      store.set(given(children, tokens));
    };
    await run(fields, body, count, show, stopping.signal).finally(mend);
  } catch (error) {
    report("The text could not be completed", error);
    if (!came) store.set({ tree: was.tree, caret: was.caret, undo: was.undo, redo: was.redo }); // nothing has happened
  } finally {
    store.set({ running: null });
  }
}

const seen = new WeakMap(); // token -> {model: its alternatives}, while what is before it is the same

/** The ten likeliest tokens in the place of one: [{id, t, p}]. Asked for when they are looked at, and remembered. */
export async function alternatives(id, index, signal) {
  const { tree, model } = store.get();
  const token = tree.nodes[id].tokens[index];
  const known = seen.get(token) ?? {};
  if (known[model]) return known[model];
  const found = await likeliest(model, await ids(model, readable(tree, model, id, index), signal), TEN, signal);
  if (token.p !== null) seen.set(token, { ...seen.get(token), [model]: found });
  return found;
}

