// The tree and the settings, kept in this browser (IndexedDB) from one visit to the next, and as JSON for a file.

import { change, store } from "./store.js";
import { textOf, tokensOf, withoutIds } from "./tree.js";

const NAME = "quintet-playground";
const FORM = "quintet-tree";
const VERSION = 1;
const SETTINGS = ["controls", "dialect", "model", "branches", "panel", "view", "form"];
const AFTER_MS = 500;
const PATIENCE_MS = 3000; // for a browser that never answers, as some do not in private windows

let database = null; // open as long as the page is, which has no time to wait for it when it ends

function open() {
  return new Promise((done, failed) => {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("kept");
    opening.onsuccess = () => {
      opening.result.onclose = () => (database = null); // by the browser, as where a user clears what sites keep
      done(opening.result);
    };
    opening.onerror = () => failed(opening.error);
  });
}

async function within(mode, act) {
  database ??= await open();
  return new Promise((done, failed) => {
    const transaction = database.transaction("kept", mode);
    const asked = act(transaction.objectStore("kept"));
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => failed(asked.error);
    transaction.commit(); // now: a page that ends would not be heard later
  });
}

/** Take up what was kept, if there is something, and keep what changes from then on. Not what was never read: it might be written over. */
export async function kept() {
  const { tree: fresh } = store.get();
  const silence = new Error("The browser does not answer, so it keeps nothing of what is written now.");
  const silent = new Promise((_, failed) => setTimeout(() => failed(silence), PATIENCE_MS));
  const found = await Promise.race([within("readonly", (all) => all.get("state")).catch(() => null), silent]);
  try {
    if (found) takeUp(found, fresh);
  } finally {
    keep();
  }
}

/** What has been written since the `fresh` tree is a step back from what was kept. */
function takeUp(found, fresh) {
  const settings = Object.fromEntries(SETTINGS.filter((name) => name in found).map((name) => [name, found[name]]));
  const tree = read(found.tree);
  if (store.get().tree === fresh) store.set({ ...settings, tree });
  else {
    store.set(settings);
    change(tree, textOf(tokensOf(tree)).length);
  }
}

function keep() {
  let due = 0;
  let last = store.get();
  let changed = false;
  const save = () => {
    due = 0;
    changed = false;
    const state = store.get();
    const value = { ...Object.fromEntries(SETTINGS.map((name) => [name, state[name]])), tree: written(state.tree) };
    within("readwrite", (all) => all.put(value, "state")).catch(() => {}); // a browser that keeps nothing still writes
  };
  store.subscribe((state) => {
    changed ||= state.tree !== last.tree || SETTINGS.some((name) => state[name] !== last[name]);
    last = state;
    if (changed && !state.running) due ||= setTimeout(save, AFTER_MS);
  });
  addEventListener("pagehide", () => changed && save()); // else an idle tab would write over what another has kept since
}

/** A tree as JSON has it: tokens are [text, id, log-probability]. */
export function written(tree) {
  const nodes = Object.values(tree.nodes).map((node) => ({ ...node, tokens: node.tokens.map(({ t, id, p }) => [t, id, p]) }));
  return { format: FORM, version: VERSION, root: tree.root, current: tree.current, next: tree.next, nodes };
}

/** The tree of such JSON. Throws an Error that says what is wrong with it. */
export function read(value) {
  const must = (right, what) => {
    if (!right) throw new Error(`This is no tree of the playground: ${what}.`);
  };
  must(value?.format === FORM && value.version === VERSION, `"format" must be "${FORM}" and "version" ${VERSION}`);
  must(Array.isArray(value.nodes), `"nodes" must be a list`);
  const nodes = {};
  for (const node of value.nodes) {
    must(typeof node?.id === "string" && !(node.id in nodes), `each node needs an "id" of its own`);
    must(Array.isArray(node.children) && Array.isArray(node.tokens), `node ${node.id} needs "children" and "tokens"`);
    const right = ([t, id, p]) => typeof t === "string" && (id === null || Number.isInteger(id)) && (p === null || typeof p === "number");
    must(node.tokens.every((token) => Array.isArray(token) && right(token)), `a token of node ${node.id} is not [text, id, log-probability]`);
    const { id, parent = null, children, seed = null, model = null, asked = null, mark = false } = node;
    const tokens = node.tokens.map(([t, one, p]) => ({ t, id: one, p }));
    nodes[id] = { id, parent, children, seed, model, asked, mark: mark === true, tokens: model === null ? withoutIds(tokens) : tokens };
  }
  must(nodes[value.root]?.parent === null && nodes[value.current], `"root" and "current" must be nodes, and the root without a parent`);
  const reached = new Set();
  const walk = [value.root];
  while (walk.length) {
    const id = walk.pop();
    must(!reached.has(id), `node ${id} is reached twice`);
    reached.add(id);
    for (const child of nodes[id].children) {
      must(nodes[child]?.parent === id, `node ${child} does not name its parent ${id}`);
      walk.push(child);
    }
  }
  must(reached.size === value.nodes.length, "not every node hangs on the root");
  const next = 1 + Math.max(0, ...Object.keys(nodes).map(Number).filter(Number.isInteger));
  return { nodes, root: value.root, current: value.current, next };
}
