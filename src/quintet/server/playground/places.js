// Where a place of the document is in the text that is drawn there, and the other way; the cursor, and what is selected.

import { store } from "./store.js";
import { textOf } from "./tree.js";

/** The places of a text that `drawing` draws into `host`. An offset counts the text's characters. */
export function places(host, drawing) {
  const end = () => textOf(drawing.tokens()).length;

  const offsetAt = (node, inner) => {
    if (node === host) {
      const line = drawing.lines()[Math.min(inner, drawing.lines().length - 1)];
      return inner < drawing.lines().length ? line.start : line.start + line.length;
    }
    const block = (node.nodeType === Node.TEXT_NODE ? node.parentElement : node).closest(".line");
    const line = drawing.lines().find((one) => one.el === block);
    if (!line) return end();
    const range = document.createRange();
    range.setStart(block, 0);
    range.setEnd(node, inner);
    return line.start + Math.min(range.toString().length, line.length);
  };

  /** [from, to] of a range of the document. */
  const offsetsOf = (range) => [offsetAt(range.startContainer, range.startOffset), offsetAt(range.endContainer, range.endOffset)];

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

  const setCaret = (offset) => {
    const [node, inner] = placeOf(offset);
    const found = document.getSelection();
    if (found.isCollapsed && found.anchorNode === node && found.anchorOffset === inner) return;
    found.collapse(node, inner);
    if (!store.get().running) node.parentElement.scrollIntoView({ block: "nearest" });
  };

  /** The element of the line's end that an empty line has, or else of the one before it. */
  const emptyLinesEnd = (line) => {
    const before = drawing.lines()[drawing.lines().indexOf(line) - 1];
    return line.el.querySelector(".nl") ?? before?.el.querySelector(".nl") ?? null;
  };

  return {
    end,
    offsetAt,
    offsetsOf,
    placeOf,
    setCaret,
    /** Where a token's element begins; that of a line's end stands behind the line. */
    startOf: (span) => (span.classList.contains("nl") ? offsetAt(span.parentElement, span.parentElement.childNodes.length) : offsetAt(span, 0)),
    /** The element of the token at an offset, or before it at a text's end. */
    spanAt(offset) {
      const [node] = placeOf(offset);
      if (node.nodeType !== Node.TEXT_NODE) return emptyLinesEnd(lineOf(offset));
      const span = node.parentElement;
      return span.classList.contains("token") ? span : null;
    },
    /** The line that a node of the document is in. */
    lineAt(node) {
      const block = node && (node.closest?.(".line") ?? node.parentElement?.closest(".line"));
      return drawing.lines().find((one) => one.el === block);
    },
  };
}
