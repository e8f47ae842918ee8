// The tree of branches: where the text is in it, what else there is, and moving about.

import { html, useRef } from "./vendor/htm-preact.js";
import { read, written } from "./kept.js";
import { bookmark, cutOff, goTo, hoist, replace, treeKey } from "./moves.js";
import { store, useStore } from "./store.js";
import { newTree, path, textOf } from "./tree.js";

const SHOWN = 60;

export function TreePanel() {
  const tree = useStore((state) => state.tree);
  const hoisted = useStore((state) => state.hoist);
  const host = useRef(null);
  const top = tree.nodes[hoisted] ? hoisted : tree.root;
  const onPath = new Set(path(tree).map((node) => node.id));
  const marks = Object.values(tree.nodes).filter((node) => node.mark);

  const keys = (event) => {
    const items = [...host.current.querySelectorAll("[role=treeitem]")];
    const at = items.findIndex((item) => item.id === `node-${tree.current}`);
    const node = tree.nodes[tree.current];
    const to = { ArrowDown: items[at + 1], ArrowUp: items[at - 1], Home: items[0], End: items.at(-1) }[event.key];
    if (treeKey(event)) event.stopPropagation();
    else if (to) goTo(to.id.slice(5));
    else if (event.key === "ArrowLeft" && node.parent && tree.current !== top) goTo(node.parent);
    else if (event.key === "ArrowRight" && node.children.length) goTo(node.children[0]);
    else return;
    event.preventDefault();
    requestAnimationFrame(() => document.getElementById(`node-${store.get().tree.current}`)?.focus());
  };

  return html`<div class="treepanel">
    <div class="row">
      <button onClick=${() => bookmark(tree.current)} aria-pressed=${tree.nodes[tree.current].mark}>Bookmark <kbd>Alt B</kbd></button>
      <button onClick=${() => hoist(tree.current)} aria-pressed=${top !== tree.root}>${top === tree.root ? "Hoist" : "Whole tree"} <kbd>Alt H</kbd></button>
      <button onClick=${() => cutOff(tree.current)}>Delete <kbd>Alt Del</kbd></button>
    </div>
    <div role="tree" aria-label="Branches" class="tree" ref=${host} onKeyDown=${keys}>
      <${Branch} tree=${tree} id=${top} level=${1} onPath=${onPath} />
    </div>
    ${asked(tree.nodes[tree.current])}
    ${
      marks.length > 0 &&
      html`<h2>Bookmarks</h2><ul class="marks">${marks.map((node) => html`<li key=${node.id}><button class="quiet" onClick=${() => goTo(node.id)}><span class="excerpt">${excerpt(node)}</span></button></li>`)}</ul>`
    }
    <${Files} />
  </div>`;
}

function Branch({ tree, id, level, onPath }) {
  // A run of nodes without a fork is shown at one level: only forks go deeper.
  const run = [];
  for (let at = id; at; at = tree.nodes[at].children.length === 1 ? tree.nodes[at].children[0] : null) run.push(tree.nodes[at]);
  const { children } = run.at(-1);
  return html`${run.map((node) => html`<${Item} key=${node.id} tree=${tree} node=${node} level=${level} onPath=${onPath} />`)}
    ${children.length > 1 && html`<div role="group" class="fork">${children.map((child) => html`<${Branch} key=${child} tree=${tree} id=${child} level=${level + 1} onPath=${onPath} />`)}</div>`}`;
}

function Item({ tree, node, level, onPath }) {
  const here = tree.current === node.id;
  const look = `item ${onPath.has(node.id) ? "on" : ""} ${node.seed === null ? "hand" : "drawn"}`;
  return html`<div role="treeitem" id=${`node-${node.id}`} class=${look} aria-level=${level} aria-selected=${here} tabindex=${here ? 0 : -1}
    onClick=${() => goTo(node.id)}>${node.mark && html`<span class="mark" role="img" aria-label="Bookmarked">★</span>`}${excerpt(node)}</div>`;
}

/** What a branch was asked for with. */
function asked({ seed, asked: body }) {
  if (!body) return null;
  const controls = Object.entries(body).filter(([name]) => name !== "model" && name !== "seed");
  const told = controls.map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return html`<p class="hint asked">${[body.model, `seed ${seed}`, ...told].join(" · ")}</p>`;
}

function excerpt(node) {
  const text = textOf(node.tokens.slice(0, SHOWN)).trim().replace(/\s+/g, " ");
  if (text === "") return node.parent === null ? "(beginning)" : "(empty)";
  return text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text;
}

function Files() {
  const running = useStore((state) => state.running);
  const save = () => {
    const blob = new Blob([JSON.stringify(written(store.get().tree))], { type: "application/json" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "quintet-tree.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const load = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    try {
      if (!replace(read(JSON.parse(await file.text())))) throw new Error("A text is being written. Try again when it has ended.");
    } catch (error) {
      store.set({ problem: { title: "The file could not be read", text: error.message } });
    }
  };
  return html`<div class="row files">
    <button onClick=${save}>Export</button>
    <label class="button">Import<input type="file" class="hidden" accept=".json,application/json" disabled=${running} onChange=${load} /></label>
    <button disabled=${running} onClick=${() => replace(newTree())}>New</button>
  </div>
  <p class="hint">Kept in this browser. An import and New can be undone.</p>`;
}
