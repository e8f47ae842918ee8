// Asking for the API key, where the server needs one.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { key } from "./server.js";
import { store, useStore } from "./store.js";

export function KeyDialog({ connect }) {
  const open = useStore((state) => state.asksKey);
  const refusal = useStore((state) => state.refusal);
  const dialog = useRef(null);
  const [value, setValue] = useState("");
  useEffect(() => {
    if (open && !dialog.current.open) dialog.current.showModal();
    if (!open && dialog.current.open) dialog.current.close();
  }, [open]);
  const use = (given) => {
    key.set(given.trim());
    setValue("");
    store.set({ asksKey: false, problem: null, refusal: "" });
    connect();
  };
  const submit = (event) => {
    event.preventDefault();
    if (value.trim()) use(value);
  };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onCancel=${() => store.set({ asksKey: false })}>
    <form onSubmit=${submit}>
      <h2 id="key-title">API key</h2>
      <p>Sent to this server with each request. Kept in this tab’s session storage, so it is gone when the tab is closed, and never in an export.</p>
      <label class="stacked">Key
        <input type="password" autocomplete="off" spellcheck=${false} value=${value} aria-describedby="key-refusal"
          onInput=${(event) => setValue(event.target.value)} /></label>
      <p id="key-refusal" class="wrong" role="alert">${refusal}</p>
      <div class="row">
        <button class="main" disabled=${!value.trim()}>Use this key</button>
        <button type="button" disabled=${!key.get()} onClick=${() => use("")}>Forget the key</button>
        <button type="button" class="quiet" onClick=${() => store.set({ asksKey: false })}>Close</button>
      </div>
    </form>
  </dialog>`;
}
