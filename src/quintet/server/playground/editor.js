// The text as it is written in: coloured tokens that can be edited like any text. The browser says what the user wants (beforeinput), the
// tree is changed, and the difference is drawn; only while a character is being composed does the browser write by itself.

import { change, redo, store, undo } from "./store.js";
import { drawer } from "./lines.js";
import { edit, locate, textOf, tokensOf } from "./tree.js";

const ENDS = { Home: 0, End: 1, ...(navigator.userAgent.includes("Mac") ? { ArrowUp: 0, ArrowDown: 1 } : {}) };

/** Makes `host` the editor; gives what else the page wants of it. */
export function editor(host) {
  const drawing = drawer(host);
  let composing = false;

  const show = () => {
    const { tree } = store.get();
    const tokens = tokensOf(tree);
    const followed = host.scrollHeight - host.scrollTop - host.clientHeight < 40;
    drawing.draw(tokens);
    host.dataset.empty = String(tokens.length === 0);
    if (store.get().running && followed) host.scrollTop = host.scrollHeight;
    if (document.activeElement === host) setCaret(store.get().caret);
  };

  /** Where a place of the document is in the text. */
  const offsetAt = (node, inner) => {
    if (node === host) {
      const line = drawing.lines()[Math.min(inner, drawing.lines().length - 1)];
      return inner < drawing.lines().length ? line.start : line.start + line.length;
    }
    const block = (node.nodeType === Node.TEXT_NODE ? node.parentElement : node).closest(".line");
    const line = drawing.lines().find((one) => one.el === block);
    if (!line) return textOf(drawing.tokens()).length;
    const range = document.createRange();
    range.setStart(block, 0);
    range.setEnd(node, inner);
    return line.start + Math.min(range.toString().length, line.length);
  };

  const lineOf = (offset) => {
    const lines = drawing.lines();
    let [low, high] = [0, lines.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (lines[middle].start <= offset) low = middle;
      else high = middle - 1;
    }
    return lines[low];
  };

  const placeOf = (offset) => {
    const line = lineOf(offset);
    let rest = offset - line.start;
    for (const span of line.el.childNodes) {
      const { length } = span.textContent;
      if (rest <= length && span.firstChild) return [span.firstChild, rest];
      rest -= length;
    }
    return [line.el, 0];
  };

  /** The element of the line's end that an empty line has, or else of the one before it. */
  const emptyLinesEnd = (line) => {
    const before = drawing.lines()[drawing.lines().indexOf(line) - 1];
    return line.el.querySelector(".nl") ?? before?.el.querySelector(".nl") ?? null;
  };

  const setCaret = (offset) => {
    const [node, inner] = placeOf(offset);
    const found = document.getSelection();
    if (found.isCollapsed && found.anchorNode === node && found.anchorOffset === inner) return;
    found.collapse(node, inner);
    if (!store.get().running) node.parentElement.scrollIntoView({ block: "nearest" });
  };

  const replace = (from, to, text, burst) => {
    if (store.get().running) return;
    // A key may delete nothing, as at the beginning, and what is composed be given up.
    if (from < to || text !== "") change(edit(store.get().tree, from, to, text), from + text.length, burst);
    setCaret(from + text.length);
  };

  let taken = null; // {from, to} of what is being moved by mouse

  /** What was taken to another place, as one step. */
  const move = (at, text) => {
    const { from, to } = taken;
    taken = null;
    if (store.get().running || (at >= from && at <= to)) return;
    const place = at > to ? at - (to - from) : at;
    change(edit(edit(store.get().tree, from, to, ""), place, place, text), place + text.length);
    setCaret(place + text.length);
  };

  host.addEventListener("dragend", () => {
    if (taken) replace(taken.from, taken.to, "", false); // to another field
    taken = null;
  });

  host.addEventListener("beforeinput", (event) => {
    if (event.isComposing || event.inputType === "insertCompositionText") return;
    event.preventDefault();
    if (event.inputType === "historyUndo") return restore(undo);
    if (event.inputType === "historyRedo") return restore(redo);
    const [range] = event.getTargetRanges();
    if (!range) return;
    const from = offsetAt(range.startContainer, range.startOffset);
    const to = offsetAt(range.endContainer, range.endOffset);
    const text = wanted(event);
    // Of a move by mouse this is told first. What is taken out at once would be drawn anew with the place that it is to go to.
    if (event.inputType === "deleteByDrag") taken = { from, to };
    else if (event.inputType === "insertFromDrop" && taken) move(from, text);
    else if (text !== null) replace(Math.min(from, to), Math.max(from, to), text, event.inputType === "insertText");
  });

  host.addEventListener("compositionstart", () => (composing = true));
  host.addEventListener("compositionend", () => {
    composing = false;
    const found = document.getSelection();
    const block = found.anchorNode && (found.anchorNode.closest?.(".line") ?? found.anchorNode.parentElement?.closest(".line"));
    const line = drawing.lines().find((one) => one.el === block);
    if (!line) return;
    const now = block.textContent;
    const was = line.pieces.map((piece) => piece.t).join("");
    let [start, end] = [0, 0];
    while (start < was.length && start < now.length && was[start] === now[start]) start++;
    while (end < was.length - start && end < now.length - start && was.at(-1 - end) === now.at(-1 - end)) end++;
    drawing.redraw(line); // the browser has written here by its own rules
    replace(line.start + start, line.start + was.length - end, now.slice(start, now.length - end), true);
  });

  const restore = (what) => {
    what();
    setCaret(store.get().caret);
  };

  host.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    if (command && !event.altKey && event.key.toLowerCase() === "z") {
      event.preventDefault();
      restore(event.shiftKey ? redo : undo);
    } else if (command && !event.altKey && event.key.toLowerCase() === "y") {
      event.preventDefault();
      restore(redo);
    } else if (command && event.key in ENDS) {
      // The browser goes no further than the blocks that it has laid out.
      event.preventDefault();
      const offset = ENDS[event.key] * textOf(drawing.tokens()).length;
      if (event.shiftKey) document.getSelection().extend(...placeOf(offset));
      else setCaret(offset);
    } else if (command && !event.altKey && event.key.toLowerCase() === "a") {
      event.preventDefault();
      document.getSelection().setBaseAndExtent(...placeOf(0), ...placeOf(textOf(drawing.tokens()).length));
    }
  });

  const selected = () => {
    const found = document.getSelection();
    if (composing || !found.anchorNode || !host.contains(found.anchorNode)) return;
    const caret = offsetAt(found.focusNode, found.focusOffset);
    if (caret !== store.get().caret) store.set({ caret });
  };
  document.addEventListener("selectionchange", selected);

  // What is copied or dragged is the text, with its line ends, not the blocks that it is drawn in.
  for (const kind of ["copy", "cut", "dragstart"])
    host.addEventListener(kind, (event) => {
      const range = document.getSelection().getRangeAt(0);
      const from = offsetAt(range.startContainer, range.startOffset);
      const to = offsetAt(range.endContainer, range.endOffset);
      if (from === to) return;
      if (kind === "dragstart") event.dataTransfer.clearData(); // of the blocks as HTML
      else event.preventDefault();
      (event.clipboardData ?? event.dataTransfer).setData("text/plain", textOf(drawing.tokens()).slice(from, to));
      if (kind === "cut") replace(from, to, "", false);
    });

  let shown = store.get().tree;
  const stop = store.subscribe((state) => {
    if (state.tree === shown || composing) return;
    shown = state.tree;
    show();
  });
  show();

  return {
    /** The token at an element of the text: {node, index}, and the element. */
    tokenAt(span) {
      if (!span?.classList?.contains("token")) return null;
      let offset = offsetAt(span, 0);
      if (span.classList.contains("nl")) offset = offsetAt(span.parentElement, span.parentElement.childNodes.length);
      return { ...locate(store.get().tree, offset), span };
    },
    /** The element of the token at the cursor, or before it at a text's end. */
    spanAtCaret() {
      const { caret } = store.get();
      const [node] = placeOf(caret);
      if (node.nodeType !== Node.TEXT_NODE) return emptyLinesEnd(lineOf(caret));
      const span = node.parentElement;
      return span.classList.contains("token") ? span : null;
    },
    setCaret,
    /** Take the cursor from where it is; the browser tells of a move only a moment later. */
    heed: selected,
    stop() {
      stop();
      document.removeEventListener("selectionchange", selected);
    },
  };
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
