// Small parts that several views show.

import { html } from "./vendor/htm-preact.js";
import { SHADES, count, fixed, shade } from "./numbers.js";
import { useStore } from "./store.js";

/** What a completion took. */
export function Told({ told }) {
  const running = useStore((state) => state.running);
  return html`<p class="told" role="status" aria-live=${running ? "off" : "polite"}>${told ? summary(told) : (running?.label ?? "")}</p>`;
}

function summary({ began, first, last, tokens, usage, ends }) {
  const seconds = first === null ? 0 : (last - first) / 1000;
  const parts = [`${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`];
  if (first !== null) parts.push(`first after ${fixed(first - began, 0)} ms`);
  if (seconds > 0 && tokens > 1) parts.push(`${fixed((tokens - 1) / seconds, 1)} tokens/s`);
  if (usage) parts.push(`prompt ${count(usage.prompt)}${usage.cached === null ? "" : `, ${count(usage.cached)} cached`}`);
  const whys = new Set(ends.filter(Boolean)); // of choices that have not ended there is none
  if (whys.size) parts.push(`ended: ${[...whys].join(", ")}`);
  return parts.join(" · ");
}

export const Legend = () =>
  html`<span class="legend" role="group" aria-label="Colours by probability">${SHADES.map((title, k) => html`<span key=${k} class=${`swatch p${k}`}>${title}</span>`)}</span>`;

/** Tokens as text, coloured; `marked(k)`: a class for some of them. */
export const Tokens = ({ tokens, marked = () => "" }) =>
  html`<div class="tokens">${tokens.map((token, k) => html`<span key=${k} class=${`token ${shade(token.p)} ${marked(k)}`}>${token.t}</span>`)}</div>`;

/** What a button does that has taken another's place: not at the second click of a double one, which was meant for that. */
export const once = (act) => (event) => event.detail < 2 && act();
