// How surprising a text is to the model: of each token, each line and the whole, and where it is worst.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Alternatives, useLooking } from "./alternatives.js";
import { echoed } from "./answers.js";
import { followed } from "./characters.js";
import { TEN, report } from "./generate.js";
import { drawer } from "./lines.js";
import { replace } from "./moves.js";
import { bits, count, fixed, lines, percent, perplexity, shade, shown } from "./numbers.js";
import { scoring } from "./request.js";
import { complete, dialect, likeliest } from "./server.js";
import { store, useStore } from "./store.js";
import { newTree, textOf, tokensOf, typed, update } from "./tree.js";
import { Legend, once } from "./words.js";

const WORST = 12;

export function Surprise() {
  const text = useStore((state) => state.pasted);
  const scored = useStore((state) => state.scored);
  const running = useStore((state) => state.running);
  const model = useStore((state) => state.model);

  const map = async () => {
    const stopping = new AbortController();
    store.set({ running: { stop: () => stopping.abort(), label: "Reading" }, problem: null });
    try {
      const tokens = echoed(await complete(await dialect("openai"), scoring(model, text), stopping.signal));
      store.set({ scored: { tokens, model } }); // it is there also when the view is left and come back to
    } catch (error) {
      report("The text could not be scored", error);
    } finally {
      store.set({ running: null });
    }
  };
  const give = (value) => store.set({ pasted: value });
  return html`<section class="surprise sheet" aria-label="Surprise">
    <label class="stacked">Text to score
      <textarea rows=${scored ? 3 : 9} value=${text} onInput=${(event) => give(event.target.value)} placeholder="Paste a text." spellcheck=${false}></textarea></label>
    <div class="row">
      ${
        running
          ? html`<button class="main" onClick=${once(running.stop)}>Stop</button>`
          : html`<button class="main" disabled=${text === ""} onClick=${map}>Score</button>`
      }
      <button onClick=${() => give(textOf(tokensOf(store.get().tree)))}>Take the text of Write</button>
      ${scored && html`<button class="quiet" disabled=${running} onClick=${() => toWrite(scored.tokens, scored.model)}>Open in Write</button>`}
    </div>
    ${scored && html`<${Scored} ...${scored} />`}
  </section>`;
}

/**
 * Scored tokens as a new text in Write. Their first text is one that was typed: before a first token with an id Write puts
 * what a document begins with, and here that was either not there or is among those without text.
 */
function toWrite(tokens, model) {
  const first = tokens.findIndex((token) => token.t !== "");
  const begun = first < 0 ? [] : [...typed(tokens[first].t), ...tokens.slice(first + 1)];
  const tree = newTree();
  if (replace(update(tree, tree.root, { tokens: begun, model }))) store.set({ view: "write" });
}

/** Scored tokens in Write, with another one in the place of the next. */
async function goOn(tokens, model, token) {
  try {
    toWrite(await followed(model, tokens, token), model);
  } catch (error) {
    report("The text could not be opened", error);
  }
}

function Scored({ tokens, model }) {
  const host = useRef(null);
  const drawing = useRef(null);
  const [looked, setLooked] = useState(null);
  const scored = lines(tokens);
  const known = tokens.filter((token) => token.p !== null);

  useEffect(() => {
    drawing.current = drawer(host.current);
  }, []);
  useEffect(() => {
    drawing.current.draw(tokens);
    const blocks = drawing.current.lines();
    let line = 0;
    blocks.forEach((block, k) => {
      if (k === 0 || !blocks[k - 1].broken) block.el.dataset.figure = fixed(scored[line++].perplexity, 1);
      else delete block.el.dataset.figure;
    });
  }, [tokens]);

  const tokenAt = (span) => {
    const block = drawing.current.lines().find((one) => one.el === span.closest(".line"));
    const range = document.createRange();
    range.setStart(block.el, 0);
    range.setEnd(span, 0);
    const nl = span.classList.contains("nl") ? span.parentElement.textContent.length : null;
    return { index: indexAt(tokens, block.start + (nl ?? range.toString().length)), span };
  };
  useLooking(host, tokenAt, setLooked);
  const spanOf = (index) => {
    const start = tokens.slice(0, index).reduce((sum, token) => sum + token.t.length, 0);
    const block = drawing.current.lines().findLast((one) => one.start <= start);
    let at = block.start;
    for (const span of block.el.children) {
      if (at >= start) return span;
      at += span.textContent.length;
    }
    return block.el.lastElementChild;
  };
  const look = (index) => {
    const span = spanOf(index);
    span.scrollIntoView({ block: "center" });
    setLooked({ index, span, focus: true });
  };
  const worst = tokens.map((token, index) => ({ ...token, index })).filter((token) => token.p !== null);
  worst.sort((a, b) => a.p - b.p);
  const token = looked && tokens[looked.index];
  return html`<div class="map">
    <dl class="figures">
      <div><dt>Perplexity</dt><dd id="perplexity">${fixed(perplexity(tokens.map((one) => one.p)), 3)}</dd></div>
      <div><dt>Tokens scored</dt><dd>${count(known.length)} of ${count(tokens.length)}</dd></div>
      <div><dt>Bits per token</dt><dd>${fixed(known.reduce((sum, one) => sum + bits(one.p), 0) / known.length, 3)}</dd></div>
    </dl>
    <p class="hint">The first token has no probability: nothing is before it. Left of each line: its perplexity.</p>
    <${Legend} />
    <div class="scored" ref=${host} tabindex="0" role="region" aria-label="Scored text"></div>
    <div class="columns">
      <section aria-label="Worst tokens"><h2>Worst tokens</h2><ol class="worst">${worst.slice(0, WORST).map(
        (one) => html`<li key=${one.index}><button onClick=${() => look(one.index)}><span class=${`piece ${shade(one.p)}`}>${shown(one.t)}</span>
          <span class="figure">${percent(one.p)} · ${fixed(bits(one.p), 1)} bits</span></button></li>`,
      )}</ol></section>
      <section aria-label="Worst lines"><h2>Worst lines</h2><ol class="worst">${scored
        .filter((line) => line.perplexity !== null)
        .sort((a, b) => b.perplexity - a.perplexity)
        .slice(0, WORST)
        .map(
          (line) => html`<li key=${line.first}><button onClick=${() => look(line.first)}><span class="piece">${excerpt(textOf(tokens.slice(line.first, line.end)))}</span>
          <span class="figure">${fixed(line.perplexity, 1)}</span></button></li>`,
        )}</ol></section>
    </div>
    ${
      token &&
      html`<${Alternatives} token=${token} span=${looked.span} focus=${looked.focus} close=${() => setLooked(null)}
        ask=${(signal) => before(tokens, looked.index, model, signal)}
        choose=${(one) => goOn(tokens.slice(0, looked.index), model, one)} />`
    }
  </div>`;
}

/** The likeliest tokens in a place that has something before it. */
async function before(tokens, index, model, signal) {
  if (index === 0) throw new Error("Nothing is before the first token.");
  return likeliest(model, tokens.slice(0, index).map((token) => token.id), TEN, signal);
}

/** A line where it stands alone; an empty one is its end. */
const excerpt = (text) => shown(text.trim() || text);

function indexAt(tokens, offset) {
  let at = 0;
  return tokens.findIndex((token) => (at += token.t.length) > offset);
}
