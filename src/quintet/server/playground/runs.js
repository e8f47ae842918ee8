// One request and what comes of it, in whichever view: tokens per choice, and what it took.

import { generate } from "./server.js";

/**
 * Send `body`; `show(lists, told)` is called at most once a frame with the tokens so far of each of `count` choices, and at the end.
 * told: {began, first, last, tokens, usage, ends}: times in ms, how many tokens came, what the server counted, why each choice ended,
 * by its number.
 */
export async function run(dialect, body, count, show, signal) {
  const began = performance.now();
  const told = { began, first: null, last: began, tokens: 0, usage: null, ends: [] };
  const lists = Array.from({ length: count }, () => []);
  let due = 0;
  const draw = () => {
    due = 0;
    show(lists, { ...told });
  };
  const heard = (events) => {
    told.last = performance.now();
    for (const event of events) {
      if (event.kind === "tokens") {
        told.first ??= told.last;
        const list = lists[event.index];
        told.tokens += event.first + event.tokens.length - list.length;
        list.splice(event.first, Infinity, ...event.tokens);
      } else if (event.kind === "end") told.ends[event.index] = event.why;
      else if (event.kind === "usage") told.usage = event;
    }
    due ||= requestAnimationFrame(draw);
  };
  try {
    await generate(dialect, body, heard, signal);
  } finally {
    if (due) {
      cancelAnimationFrame(due);
      draw();
    }
  }
}
