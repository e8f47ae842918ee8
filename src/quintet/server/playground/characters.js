// Characters that several tokens make: which tokens begin one that they do not end, and what tokens write together.

import { detokenize } from "./server.js";
import { branchingPoint, readable, remove, textOf, typed } from "./tree.js";

const MOST = 3; // tokens of a character before its last one, as it has at most four bytes
const WINDOW = MOST + 4; // with a whole one before them

const broken = (text) => text.endsWith("\ufffd");

/** Whether the last of these tokens is seen to end amid a character. */
export const amid = (tokens) => tokens.length > 0 && tokens.at(-1).id !== null && broken(tokens.at(-1).t);

/** How many of the last tokens begin a character that they do not end. Their own texts need not show it. */
async function begun(model, tokens, signal) {
  const last = tokens.slice(-WINDOW).map((token) => token.id);
  const ids = last.slice(last.lastIndexOf(null) + 1);
  let many = 0;
  while (many < Math.min(MOST, ids.length) && broken(await detokenize(model, ids.slice(0, ids.length - many), signal))) many++;
  return many;
}

/**
 * Tokens with the text that the first of them write together: of the first `least`, and on to the end of the character that these end in.
 * It stands in its last token, as it does within an answer.
 */
export async function spelled(model, tokens, least, signal) {
  const made = [];
  let told = "";
  for (const token of tokens) {
    if (token.id === null || (made.length >= least && !broken(told))) break;
    const before = made.at(-1);
    if (before && broken(before.t)) before.t = before.t.slice(0, -1); // what it did not end stands in a later one
    if (broken(told)) told = told.slice(0, -1);
    const text = await detokenize(model, [...made.map(({ id }) => id), token.id], signal);
    const control = token.t === "" && !broken(text); // it is written out there, and has no text in an answer
    made.push({ ...token, t: control ? "" : text.slice(told.length) });
    told = text;
  }
  return [...made, ...tokens.slice(made.length)];
}

/** Tokens and another one after them, which may end a character that they began. */
export async function followed(model, tokens, token) {
  const many = await begun(model, tokens);
  const before = tokens.slice(0, tokens.length - many);
  return [...before, ...(await spelled(model, [...tokens.slice(before.length), token], many + 1))];
}

/**
 * A node from which branches may grow at a place of the text up to `tree.current`, and what each begins with: [tree, node, tokens].
 * No character is divided among nodes. Where it would be, its tokens before the place begin the new branches too, and before them comes the
 * cut; but those that are not seen there are not meant, only the text that they show. Nothing of what stands behind the place is lost.
 * token: [the one to go on from], or [].
 */
export async function ground(tree, model, place, token, signal) {
  const end = place.index === tree.nodes[place.node].tokens.length;
  const many = place.inner ? 0 : await begun(model, readable(tree, model, place.node, place.index), signal);
  const [from, taken] = back(tree, place, many);
  const lead = token.length ? await spelled(model, [...taken, ...token], many + 1, signal) : amid(taken) ? taken : typed(textOf(taken));
  if (many === 0) return [...(end ? [tree, place.node] : branchingPoint(tree, place)), lead];
  const [cut, parent] = branchingPoint(tree, from);
  const { children, mark } = tree.nodes[place.node];
  const left = end && children.length === 0 && !mark ? remove(cut, cut.current) : cut; // no branch that only repeats how others begin
  return [left, parent, lead];
}

/** The place so many tokens before another, and these. */
function back(tree, { node, index }, many) {
  const taken = [];
  while (taken.length < many) {
    if (index > 0) taken.unshift(tree.nodes[node].tokens[--index]);
    else {
      node = tree.nodes[node].parent;
      index = tree.nodes[node].tokens.length;
    }
  }
  return [{ node, index, inner: 0 }, taken];
}
