// Walking in the tree by keyboard, the same in the text and in the panel: Alt with arrows, bookmarks, hoisting.

import { change, store } from "./store.js";
import { neighbour, path, remove, select, textOf, tokensOf, update } from "./tree.js";

const ARROWS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };
const visited = {}; // node -> the child that was last gone to

/** Show the text up to a node. */
export function goTo(id) {
  const { tree } = store.get();
  if (!tree.nodes[id] || store.get().running) return;
  for (const node of path(tree, id)) if (node.parent !== null) visited[node.parent] = node.id;
  const made = select(tree, id);
  store.set({ tree: made, caret: textOf(tokensOf(made)).length });
}

export function bookmark(id) {
  const { tree, caret } = store.get();
  change(update(tree, id, { mark: !tree.nodes[id].mark }), caret);
}

export function hoist(id) {
  store.set({ hoist: store.get().hoist === id || id === store.get().tree.root ? null : id });
}

export function cutOff(id) {
  const { tree, running } = store.get();
  if (running) return;
  const made = remove(tree, id);
  change(made, textOf(tokensOf(made)).length);
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
