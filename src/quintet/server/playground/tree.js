// A tree of texts, as values: every change makes a new tree and leaves the old one as it was, which is what undo goes back to.
//
// tree: {nodes: {id: node}, root: id, current: id, next: number}; the text is that of the nodes from the root to the current one.
// node: {id, parent, children: [id], tokens: [token], seed, model, mark, asked}; seed and asked (the request's body) are null where nobody
// was asked. model: whose ids its tokens have; null where none has one.
// token: {t: text, id: token id or null where it was typed, p: log-probability or null where it is not known}

export function newTree() {
  return { nodes: { 1: makeNode("1", null) }, root: "1", current: "1", next: 2 };
}

function makeNode(id, parent, rest = {}) {
  return { id, parent, children: [], tokens: [], seed: null, model: null, asked: null, mark: false, ...rest };
}

export const typed = (text) => (text === "" ? [] : [{ t: text, id: null, p: null }]);
export const textOf = (tokens) => tokens.map((token) => token.t).join("");

/** The nodes from the root to `id`. */
export function path(tree, id = tree.current) {
  const found = [];
  for (let node = tree.nodes[id]; node; node = tree.nodes[node.parent]) found.push(node);
  return found.reverse();
}

export const tokensOf = (tree, id = tree.current) => path(tree, id).flatMap((node) => node.tokens);

/** The tokens up to a node, and in it up to `index`, as a model may be sent them: those of another one are text. */
export function readable(tree, model, id = tree.current, index = Infinity) {
  const tokens = (node) => (node.id === id ? node.tokens.slice(0, index) : node.tokens);
  return path(tree, id).flatMap((node) => (node.model === model ? tokens(node) : withoutIds(tokens(node))));
}

export function update(tree, id, change) {
  return { ...tree, nodes: { ...tree.nodes, [id]: { ...tree.nodes[id], ...change } } };
}

export function select(tree, id) {
  return tree.nodes[id] ? { ...tree, current: id } : tree;
}

/** A new last child of `parent`; gives the tree and its id. */
export function addChild(tree, parent, rest) {
  const id = String(tree.next);
  const made = { ...tree, next: tree.next + 1, nodes: { ...tree.nodes, [id]: makeNode(id, parent, rest) } };
  return [update(made, parent, { children: [...tree.nodes[parent].children, id] }), id];
}

/** Where an offset of the current text is: the node, how many of its tokens are before it, and how many characters of the next one. */
export function locate(tree, offset) {
  const nodes = path(tree);
  let at = 0;
  for (const node of nodes) {
    for (let index = 0; index < node.tokens.length; index++) {
      const end = at + node.tokens[index].t.length;
      if (offset < end) return { node: node.id, index, inner: offset - at };
      at = end;
    }
  }
  const last = nodes[nodes.length - 1];
  return { node: last.id, index: last.tokens.length, inner: 0 };
}

/** Cut a node in two, so that it ends after `index` tokens and `inner` characters; what it had beyond becomes a child of its own. */
export function split(tree, id, index, inner = 0) {
  const node = tree.nodes[id];
  const [before, after] = cut(node.tokens, index, inner);
  if (after.length === 0) return [tree, null];
  const rest = String(tree.next);
  const nodes = { ...tree.nodes };
  nodes[rest] = makeNode(rest, id, { ...node, id: rest, parent: id, tokens: after });
  for (const child of node.children) nodes[child] = { ...nodes[child], parent: rest };
  nodes[id] = { ...node, tokens: before, children: [rest], mark: false };
  const current = path(tree).some((one) => one.id === id) ? (tree.current === id ? rest : tree.current) : tree.current;
  return [{ ...tree, nodes, next: tree.next + 1, current }, rest];
}

/** A place from which branches may go: a node that ends there. Nothing of what stands behind it is lost. */
export function branchingPoint(tree, { node, index, inner }) {
  if (index === 0 && inner === 0 && tree.nodes[node].parent !== null) return [tree, tree.nodes[node].parent];
  return [split(tree, node, index, inner)[0], node];
}

/** Replace the characters from `from` to `to` of the current text. Where branches hang on what would change, they keep it. */
export function edit(tree, from, to, text) {
  const nodes = path(tree);
  const start = to === from && from === length(nodes) ? endOf(nodes) : locate(tree, from);
  const first = nodes.findIndex((node) => node.id === start.node);
  const alone = nodes.slice(first).every((node, k, rest) => node.children.length === (k < rest.length - 1 ? 1 : 0));
  const end = locate(tree, to);
  const last = nodes.findIndex((node) => node.id === end.node);
  const [before] = cut(nodes[first].tokens, start.index, start.inner);
  const [, after] = cut(nodes[last].tokens, end.index, end.inner);
  const behind = nodes.slice(last + 1);
  if (alone) {
    const changed = { ...tree.nodes };
    changed[start.node] = { ...nodes[first], tokens: joined(before, typed(text), first === last ? stale(after) : []) };
    for (const node of nodes.slice(first + 1, last)) changed[node.id] = { ...node, tokens: [] };
    if (last > first) changed[end.node] = { ...nodes[last], tokens: stale(after) };
    for (const node of behind) changed[node.id] = { ...node, tokens: stale(node.tokens) };
    return { ...tree, nodes: changed };
  }
  const tail = [{ ...nodes[last], tokens: after }, ...behind];
  const model = tail.find((node) => node.tokens.some((token) => token.id !== null))?.model ?? null; // a node's ids are of one model
  const kept = tail.flatMap((node) => stale(node.model === model ? node.tokens : withoutIds(node.tokens)));
  const [made, parent] = branchingPoint(tree, start);
  const [grown, id] = addChild(made, parent, { tokens: joined([], typed(text), kept), model });
  return { ...grown, current: id };
}

/** Tokens as if they had been typed: to a model that did not draw them their ids mean others. */
export const withoutIds = (tokens) => tokens.map((token) => (token.id === null ? token : { t: token.t, id: null, p: null }));

/** Tokens whose probability is not known any more, as what is before them has changed. */
function stale(tokens) {
  return tokens.some((token) => token.p !== null) ? tokens.map((token) => (token.p === null ? token : { ...token, p: null })) : tokens;
}

function joined(...parts) {
  const made = [];
  for (const token of parts.flat()) {
    const last = made[made.length - 1];
    if (last && last.id === null && token.id === null) made[made.length - 1] = { ...last, t: last.t + token.t };
    else made.push(token);
  }
  return made;
}

function cut(tokens, index, inner) {
  if (inner === 0) return [tokens.slice(0, index), tokens.slice(index)];
  const { t } = tokens[index]; // half of a token is none of the vocabulary's any more: it is text
  return [[...tokens.slice(0, index), ...typed(t.slice(0, inner))], [...typed(t.slice(inner)), ...tokens.slice(index + 1)]];
}

const length = (nodes) => nodes.reduce((sum, node) => sum + node.tokens.reduce((all, token) => all + token.t.length, 0), 0);

function endOf(nodes) {
  const last = nodes[nodes.length - 1];
  return { node: last.id, index: last.tokens.length, inner: 0 };
}

/** Without a node, which is not the root, and all beneath it. */
export function remove(tree, id) {
  const { parent } = tree.nodes[id];
  const nodes = { ...tree.nodes };
  for (const one of below(tree, id)) delete nodes[one];
  nodes[parent] = { ...nodes[parent], children: nodes[parent].children.filter((child) => child !== id) };
  return { ...tree, nodes, current: nodes[tree.current] ? tree.current : parent };
}

/** The ids of a node and all beneath it. */
export function below(tree, id) {
  return [id, ...tree.nodes[id].children.flatMap((child) => below(tree, child))];
}

/** The node that an arrow key leads to from the current one: "up" and "down" among its siblings, "left" its parent, "right" a child. */
export function neighbour(tree, direction, visited = {}) {
  const node = tree.nodes[tree.current];
  if (direction === "left") return node.parent;
  if (direction === "right") return node.children.includes(visited[node.id]) ? visited[node.id] : (node.children[0] ?? null);
  if (node.parent === null) return null;
  const siblings = tree.nodes[node.parent].children;
  return siblings[siblings.indexOf(node.id) + (direction === "down" ? 1 : -1)] ?? null;
}
