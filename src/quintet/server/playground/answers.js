// The chunks and bodies of the five dialects, as the same events:
// {kind: "prompt", index, ids}, {kind: "tokens", index, first, tokens: [{t, id, p}]}, {kind: "end", index, why}, {kind: "usage", ...}.
// The tokens are those of the choice from number `first` on: the text of some may have grown, as a character can take several tokens.

/** What is remembered between the chunks of an answer. */
export const reader = () => ({ choices: new Map() });

export function answered(read, body) {
  if (body.error) throw new Error(body.error.message ?? "The server failed.");
  const events = [];
  for (const choice of body.choices ?? []) {
    const index = choice.index ?? 0;
    if (choice.prompt_token_ids) events.push({ kind: "prompt", index, ids: choice.prompt_token_ids });
    const found = tokens(read, index, choice, body);
    if (found.tokens.length) events.push({ kind: "tokens", index, ...found });
    if (choice.finish_reason) events.push({ kind: "end", index, why: choice.finish_reason });
  }
  if (body.usage) {
    const { prompt_tokens: prompt, completion_tokens: output } = body.usage;
    const cached = body.usage.prompt_tokens_details?.cached_tokens ?? body.perf_metrics?.["cached-prompt-tokens"] ?? null;
    events.push({ kind: "usage", prompt, output, cached: cached === null ? null : Number(cached) });
  }
  return events;
}

function tokens(read, index, choice, body) {
  const { ids, probabilities, offsets } = lists(choice, body);
  let known = read.choices.get(index);
  if (!known) read.choices.set(index, (known = { letters: [], at: [], base: null, id: [], p: [], told: 0 }));
  const before = known.letters.length;
  for (const letter of choice.text ?? "") known.letters.push(letter); // offsets count characters, not UTF-16 units
  const more = known.letters.length > before;
  // A token that a stop string cut in two has a probability and no id: what is left of it is text, as if it had been typed.
  for (let k = 0; k < Math.max(ids.length, probabilities.length); k++) {
    const offset = offsets?.[k] ?? null;
    if (offset !== null && known.base === null) known.base = offset;
    known.at.push(offset === null ? before : Math.max(offset - known.base, 0));
    known.id.push(ids[k] ?? null);
    known.p.push(k < ids.length ? (probabilities[k] ?? null) : null);
  }
  // The text of a token ends where the next one begins. What was told before is told again from the first that has grown.
  const end = (k) => (k + 1 < known.id.length ? known.at[k + 1] : known.letters.length);
  let first = known.told;
  while (first > 0 && end(first - 1) > before) first--;
  const made = [];
  for (let k = first; k < known.id.length; k++) {
    made.push({ t: known.letters.slice(known.at[k], end(k)).join(""), id: known.id[k], p: known.p[k] });
  }
  known.told = known.id.length;
  return { first, tokens: made };
}

/** Ids, log-probabilities and offsets of a choice's tokens, whichever of their shapes it has. */
function lists(choice, body) {
  const ids = choice.token_ids ?? [];
  const told = choice.logprobs;
  if (typeof told === "number") return { ids, probabilities: [told], offsets: null }; // Together's chunks, one token each
  if (Array.isArray(told?.content)) {
    const { content } = told; // Fireworks', with logprobs: true
    return { ids, probabilities: content.map((one) => one.logprob), offsets: content.map((one) => one.text_offset) };
  }
  const single = body.token && body.token.id >= 0 ? [body.token.logprob] : [];
  return { ids, probabilities: told?.token_logprobs ?? single, offsets: told?.text_offset ?? places(told?.tokens ?? [], choice.text) };
}

/** Where tokens begin in the text that they make, for answers without offsets, as Together's are. Null: it is not they that make it. */
function places(texts, text) {
  if (texts.join("") !== text) return null;
  let at = 0;
  return texts.map((one) => (at += [...one].length) - [...one].length);
}

/** The tokens of an echoed prompt, of a JSON body in OpenAI's dialect. */
export function echoed(body) {
  const [choice] = body.choices;
  const letters = [...choice.text];
  const { token_logprobs: probabilities, text_offset: offsets } = choice.logprobs;
  return choice.prompt_token_ids.map((id, k) => ({
    t: letters.slice(offsets[k], offsets[k + 1] ?? letters.length).join(""),
    id,
    p: probabilities[k],
  }));
}
