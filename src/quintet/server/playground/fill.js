// Filling a gap: what stands before it, what stands after it, and what the model puts between.

import { html } from "./vendor/htm-preact.js";
import { freshSeed, report } from "./generate.js";
import { chosen, drawable } from "./request.js";
import { run } from "./runs.js";
import { dialect } from "./server.js";
import { store, useStore } from "./store.js";
import { textOf } from "./tree.js";
import { Legend, Told, Tokens, once } from "./words.js";

const show = (tokens, told) => store.set({ filled: { tokens, told } }); // it is there also when the view is left and come back to

export function Fill() {
  const { before, after } = useStore((state) => state.gap);
  const running = useStore((state) => state.running);
  const name = useStore((state) => state.dialect);
  const { tokens, told } = useStore((state) => state.filled);
  const set = (changed) => store.set({ gap: { ...store.get().gap, ...changed } });

  const fill = async () => {
    const { model, controls } = store.get();
    const stopping = new AbortController();
    store.set({ running: { stop: () => stopping.abort(), label: "Filling" }, problem: null });
    show([], null);
    try {
      const fields = await dialect("openai"); // of the five pages only this one fills gaps
      const body = drawable(fields, { model, prompt: before, suffix: after, ...chosen(fields, controls) }, freshSeed());
      await run(fields, body, 1, ([list], now) => show([...list], now), stopping.signal);
    } catch (error) {
      report("The gap could not be filled", error);
    } finally {
      store.set({ running: null });
    }
  };
  const keep = () => {
    set({ before: before + textOf(tokens) });
    show([], told);
  };
  return html`<section class="fill sheet" aria-label="Fill">
    <label class="stacked">Before the gap
      <textarea rows="8" value=${before} spellcheck=${false} onInput=${(event) => set({ before: event.target.value })}></textarea></label>
    <div class="gap" role="region" aria-label="Gap" aria-live=${running ? "off" : "polite"}>
      ${tokens.length ? html`<${Tokens} tokens=${tokens} />` : html`<p class="hint">${running ? "Filling …" : "The gap"}</p>`}
    </div>
    <div class="row">
      ${
        running
          ? html`<button class="main" onClick=${once(running.stop)}>Stop</button>`
          : html`<button class="main" disabled=${after === ""} onClick=${fill}>Fill</button>`
      }
      <button disabled=${running || tokens.length === 0} onClick=${keep}>Keep</button>
      <button disabled=${running || tokens.length === 0} onClick=${() => show([], told)}>Discard</button>
      <${Told} told=${told} />
    </div>
    <label class="stacked">After the gap
      <textarea rows="8" value=${after} spellcheck=${false} onInput=${(event) => set({ after: event.target.value })}></textarea></label>
    <${Legend} />
    ${name !== "openai" && html`<p class="hint">Sent in OpenAI’s dialect, the only page of the five that has suffix.</p>`}
    <p class="hint">For models with fill-in-the-middle tokens, such as Qwen2.5-Coder and StarCoder2.</p>
  </section>`;
}
