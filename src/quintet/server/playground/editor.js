// The text as it is written in: coloured tokens that can be edited like any text. The browser says what the user wants (beforeinput), the
// tree is changed, and the difference is drawn; only while a character is being composed does the browser write by itself.

import { change, redo, store, undo } from "./store.js";
import { drawer } from "./lines.js";
import { places } from "./places.js";
import { edit, locate, textOf, tokensOf } from "./tree.js";

const ENDS = { Home: 0, End: 1, ...(navigator.userAgent.includes("Mac") ? { ArrowUp: 0, ArrowDown: 1 } : {}) };

/** Makes `host` the editor; gives what else the page wants of it. */
export function editor(host) {
  const drawing = drawer(host);
  const at = places(host, drawing);
  hearInput(host, at);
  hearKeys(host, at);
  hearCopying(host, at, drawing);
  const composing = hearComposition(host, at, drawing);

  const show = () => {
    const tokens = tokensOf(store.get().tree);
    const followed = host.scrollHeight - host.scrollTop - host.clientHeight < 40;
    drawing.draw(tokens);
    host.dataset.empty = String(tokens.length === 0);
    if (store.get().running && followed) host.scrollTop = host.scrollHeight;
    if (document.activeElement === host) at.setCaret(store.get().caret);
  };
  let shown = store.get().tree;
  const unsubscribe = store.subscribe((state) => {
    if (state.tree === shown || composing()) return;
    shown = state.tree;
    show();
  });
  show();

  const selected = () => {
    const found = document.getSelection();
    if (composing() || !found.anchorNode || !host.contains(found.anchorNode)) return;
    const caret = at.offsetAt(found.focusNode, found.focusOffset);
    if (caret !== store.get().caret) store.set({ caret });
  };
  document.addEventListener("selectionchange", selected);

  return {
    /** The token at an element of the text: {node, index}, and the element. */
    tokenAt: (span) => (span?.classList?.contains("token") ? { ...locate(store.get().tree, at.startOf(span)), span } : null),
    /** The element of the token at the cursor, or before it at a text's end. */
    spanAtCaret: () => at.spanAt(store.get().caret),
    setCaret: at.setCaret,
    /** Take the cursor from where it is; the browser tells of a move only a moment later. */
    heed: selected,
    stop() {
      unsubscribe();
      document.removeEventListener("selectionchange", selected);
    },
  };
}

/** Another text in place of a part, and the cursor behind it. */
function replace(at, from, to, text, burst) {
  if (store.get().running) return;
  // A key may delete nothing, as at the beginning, and what is composed be given up.
  if (from < to || text !== "") change(edit(store.get().tree, from, to, text), from + text.length, burst);
  at.setCaret(from + text.length);
}

/** What stands between `from` and `to` to another place, as one step. */
function move(at, { from, to }, where, text) {
  if (store.get().running || (where >= from && where <= to)) return;
  const place = where > to ? where - (to - from) : where;
  change(edit(edit(store.get().tree, from, to, ""), place, place, text), place + text.length);
  at.setCaret(place + text.length);
}

/** `undo` or `redo`, and the cursor where it was. */
function restore(at, what) {
  what();
  at.setCaret(store.get().caret);
}

/** What is typed, deleted, pasted and moved by mouse. */
function hearInput(host, at) {
  let taken = null; // {from, to} of what is being moved by mouse

  host.addEventListener("dragend", () => {
    if (taken) replace(at, taken.from, taken.to, "", false); // to another field
    taken = null;
  });

  host.addEventListener("beforeinput", (event) => {
    if (event.isComposing || event.inputType === "insertCompositionText") return;
    event.preventDefault();
    if (event.inputType === "historyUndo") return restore(at, undo);
    if (event.inputType === "historyRedo") return restore(at, redo);
    const [range] = event.getTargetRanges();
    if (!range) return;
    const [from, to] = at.offsetsOf(range);
    const text = wanted(event);
    // Of a move by mouse this is told first. What is taken out at once would be drawn anew with the place that it is to go to.
    if (event.inputType === "deleteByDrag") taken = { from, to };
    else if (event.inputType === "insertFromDrop" && taken) {
      const moved = taken;
      taken = null;
      move(at, moved, from, text);
    } else if (text !== null) replace(at, Math.min(from, to), Math.max(from, to), text, event.inputType === "insertText");
  });
}

/** What an input puts in place of its range; null: nothing that a plain text knows. */
function wanted(event) {
  switch (event.inputType) {
    case "insertLineBreak":
    case "insertParagraph":
      return "\n";
    case "insertFromPaste":
    case "insertFromDrop":
    case "insertReplacementText":
      return (event.dataTransfer?.getData("text/plain") ?? event.data ?? "").replaceAll("\r\n", "\n");
    default:
      if (event.inputType.startsWith("delete")) return "";
      return event.inputType.startsWith("insert") ? (event.data ?? "") : null;
  }
}

/** Characters that are composed of several keys: the browser writes them by itself, and it is read off in the end. Gives whether one is now. */
function hearComposition(host, at, drawing) {
  let composing = false;
  host.addEventListener("compositionstart", () => (composing = true));
  host.addEventListener("compositionend", () => {
    composing = false;
    const line = at.lineAt(document.getSelection().anchorNode);
    if (!line) return;
    const now = line.el.textContent;
    const was = line.pieces.map((piece) => piece.t).join("");
    let [start, end] = [0, 0];
    while (start < was.length && start < now.length && was[start] === now[start]) start++;
    while (end < was.length - start && end < now.length - start && was.at(-1 - end) === now.at(-1 - end)) end++;
    drawing.redraw(line); // the browser has written here by its own rules
    replace(at, line.start + start, line.start + was.length - end, now.slice(start, now.length - end), true);
  });
  return () => composing;
}

/** Keys that the browser would heed by its own rules. */
function hearKeys(host, at) {
  host.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    if (command && !event.altKey && event.key.toLowerCase() === "z") {
      event.preventDefault();
      restore(at, event.shiftKey ? redo : undo);
    } else if (command && !event.altKey && event.key.toLowerCase() === "y") {
      event.preventDefault();
      restore(at, redo);
    } else if (command && event.key in ENDS) {
      // The browser goes no further than the blocks that it has laid out.
      event.preventDefault();
      const offset = ENDS[event.key] * at.end();
      if (event.shiftKey) document.getSelection().extend(...at.placeOf(offset));
      else at.setCaret(offset);
    } else if (command && !event.altKey && event.key.toLowerCase() === "a") {
      event.preventDefault();
      document.getSelection().setBaseAndExtent(...at.placeOf(0), ...at.placeOf(at.end()));
    }
  });
}

/** What is copied or dragged is the text, with its line ends, not the blocks that it is drawn in. */
function hearCopying(host, at, drawing) {
  for (const kind of ["copy", "cut", "dragstart"])
    host.addEventListener(kind, (event) => {
      const [from, to] = at.offsetsOf(document.getSelection().getRangeAt(0));
      if (from === to) return;
      if (kind === "dragstart") event.dataTransfer.clearData(); // of the blocks as HTML
      else event.preventDefault();
      (event.clipboardData ?? event.dataTransfer).setData("text/plain", textOf(drawing.tokens()).slice(from, to));
      if (kind === "cut") replace(at, from, to, "", false);
    });
}
