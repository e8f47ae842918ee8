// A text as blocks that are drawn on their own: its lines, and pieces of those that are very long. Only what changed is touched, so that
// a text of many thousand tokens costs no more to write in than a short one.
//
// line: {el, first: the number of the token it begins in, at: the character in it, start: in the text, length, broken, pieces}
// piece: {t: text, shade: class, token: whether it was drawn, nl: whether it is a line's end}; broken: no line's end follows

import { shade } from "./numbers.js";

const MOST_PIECES = 300;
const MOST_CHARACTERS = 2000;

/** Draws tokens into `host`; `draw` may be called with any other tokens, and only their difference is drawn. */
export function drawer(host) {
  let tokens = [];
  let lines = [];
  const draw = (next) => {
    let same = 0;
    while (same < tokens.length && same < next.length && tokens[same] === next[same]) same++;
    // Lines before the first token that is another stay; the last that begins before it is cut anew from its own beginning.
    const keep = Math.max(lines.findLastIndex((line) => line.first < same), 0);
    const from = lines[keep] ?? { first: 0, at: 0, start: 0 };
    const kept = lines.slice(0, keep);
    const fresh = cut(next, from.first, from.at, from.start);
    const old = lines;
    lines = [...kept, ...fresh];
    tokens = next;
    patch(host, old, lines, kept.length);
  };
  /** Draw a line again that something else has written in. */
  const redraw = (line) => {
    line.el.replaceChildren();
    fill(line.el, [], line.pieces, line.length);
  };
  return { draw, redraw, lines: () => lines, tokens: () => tokens };
}

function cut(tokens, first, at, start) {
  const made = [];
  let line = { el: null, first, at, start, length: 0, broken: false, pieces: [] };
  const close = (token, character, broken) => {
    line.broken = broken;
    made.push(line);
    line = { el: null, first: token, at: character, start: line.start + line.length + (broken ? 0 : 1), length: 0, broken: false, pieces: [] };
  };
  for (let k = first; k < tokens.length; k++) {
    const { t, id, p } = tokens[k];
    const look = { shade: shade(p), token: id !== null };
    let from = k === first ? at : 0;
    while (from < t.length) {
      const newline = t.indexOf("\n", from);
      const room = MOST_CHARACTERS - line.length;
      let to = newline < 0 ? t.length : newline;
      const full = line.pieces.length >= MOST_PIECES || to - from > room;
      if (full && (line.pieces.length > 0 || to - from > room)) {
        if (line.pieces.length >= MOST_PIECES || room <= 0) {
          close(k, from, true);
          continue;
        }
        const space = t.lastIndexOf(" ", from + room - 1);
        to = space > from ? space + 1 : from + room;
        if (t.codePointAt(to - 1) > 0xffff) to--; // between the two halves of a character
        if (to === from) {
          close(k, from, true);
          continue;
        }
      }
      if (to > from) line.pieces.push({ t: t.slice(from, to), ...look, nl: false });
      line.length += to - from;
      from = to;
      if (from === newline) {
        if (look.token) line.pieces.push({ t: "", ...look, nl: true });
        from++;
        close(k, from, false);
      }
    }
  }
  made.push(line);
  return made;
}

const alike = (a, b) => a.t === b.t && a.shade === b.shade && a.token === b.token && a.nl === b.nl;
const equal = (a, b) => a.broken === b.broken && a.pieces.length === b.pieces.length && a.pieces.every((piece, k) => alike(piece, b.pieces[k]));

/** Make the elements of `old` those of `lines`, of which the first `kept` are the same. */
function patch(host, old, lines, kept) {
  let start = kept;
  while (start < old.length && start < lines.length && equal(old[start], lines[start])) {
    lines[start].el = old[start].el;
    start++;
  }
  let [a, b] = [old.length, lines.length];
  while (a > start && b > start && equal(old[a - 1], lines[b - 1])) lines[--b].el = old[--a].el;
  // What lies between: as many as there are on both sides are changed in place, the others come or go.
  for (let k = start; k < b; k++) {
    if (k < a) {
      lines[k].el = old[k].el;
      fill(lines[k].el, old[k].pieces, lines[k].pieces, lines[k].length);
      lines[k].el.classList.toggle("broken", lines[k].broken);
      continue;
    }
    const el = document.createElement("div");
    el.className = lines[k].broken ? "line broken" : "line";
    fill(el, [], lines[k].pieces, lines[k].length);
    lines[k].el = el;
    host.insertBefore(el, k > 0 ? lines[k - 1].el.nextSibling : host.firstChild);
  }
  for (let k = Math.max(b, start); k < a; k++) old[k].el.remove();
}

function fill(el, old, pieces, length) {
  let same = 0;
  for (; same < old.length && same < pieces.length; same++) {
    const [was, is] = [old[same], pieces[same]];
    if (was.t !== is.t || was.nl !== is.nl) break;
    if (!alike(was, is)) el.childNodes[same].className = look(is);
  }
  const children = el.childNodes;
  while (children.length > same) el.lastChild.remove();
  for (const piece of pieces.slice(same)) el.append(drawn(piece));
  if (length === 0) el.append(document.createElement("br")); // an empty block has no height and takes no cursor
}

const look = (piece) => `${piece.token ? "token" : "typed"} ${piece.shade}${piece.nl ? " nl" : ""}`.trim();

function drawn(piece) {
  const span = document.createElement("span");
  span.textContent = piece.t; // text, whatever it looks like
  span.className = look(piece);
  return span;
}
