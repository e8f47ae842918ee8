// Walking in the tree by keyboard, the same in the text and in the panel: Alt with arrows, bookmarks, hoisting.

import { change, store } from "./store.js";
import { neighbour, newTree, path, remove, select, textOf, tokensOf, update } from "./tree.js";

const ARROWS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };
const visited = {}; // node -> the child that was last gone to

/** Show the text up to a node. Whoever leaves what is hoisted sees the whole tree again. */
export function goTo(id) {
  const { tree, hoist, running } = store.get();
  if (!tree.nodes[id] || running) return;
  const nodes = path(tree, id);
  for (const node of nodes) if (node.parent !== null) visited[node.parent] = node.id;
  const made = select(tree, id);
  store.set({ tree: made, caret: textOf(tokensOf(made)).length, hoist: nodes.some((node) => node.id === hoist) ? hoist : null });
}

export function bookmark(id) {
  const { tree, caret, running } = store.get();
  if (running) return; // a step back from it would take away what has been written since
  change(update(tree, id, { mark: !tree.nodes[id].mark }), caret);
}

/** Show the tree from a node, or, where it is shown from one, all of it. */
export function hoist(id) {
  const { hoist: now, tree } = store.get();
  store.set({ hoist: tree.nodes[now] || id === tree.root ? null : id });
}

export function cutOff(id) {
  const { tree, running } = store.get();
  if (running) return;
  if (id === tree.root) {
    replace(newTree());
    return;
  }
  const made = remove(tree, id);
  change(made, textOf(tokensOf(made)).length);
}

/** Another tree altogether; its ids mean other nodes. Not while something runs, whose end might take it away; tells whether it was done. */
export function replace(tree) {
  if (store.get().running) return false;
  store.set({ hoist: null });
  change(tree, textOf(tokensOf(tree)).length);
  return true;
}

/** Whether a key was one of the tree's; then it has been heeded. */
export function treeKey(event, editor) {
  if (!event.altKey || event.ctrlKey || event.metaKey) return false;
  const { tree } = store.get();
  if (event.key in ARROWS) {
    const id = neighbour(tree, ARROWS[event.key], visited);
    if (id) goTo(id);
  } else if (event.code === "KeyB") bookmark(tree.current);
  else if (event.code === "KeyH") hoist(tree.current);
  else if (event.key === "Delete") cutOff(tree.current);
  else return false;
  editor?.setCaret(store.get().caret);
  return true;
}
