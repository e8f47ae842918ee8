// The body of a completion: what the user set, as far as the chosen dialect has it, and what the page itself needs.

import { opening, tokenize } from "./server.js";

/** Fields that a view sets, and why they cannot be set by hand. */
export const OWN = {
  model: "chosen at the top",
  prompt: "the text, up to the cursor",
  suffix: "what stands behind the gap, in the view Fill",
  n: "the number of branches",
  stream: "on, where the other controls allow it",
  "stream_options.include_usage": "on, for the timings",
  "stream_options.include_obfuscation": "off",
  return_token_ids: "on: the page goes on from ids",
  return_tokens_as_token_ids: "off",
  return_raw_tokens: "off: the page shows text",
  echo: "on, in the view Surprise",
  echo_last: "the page has the prompt already",
  prompt_logprobs: "the view Surprise has these",
};

/** The fields of a dialect, [{name, choices, note, preset, extension}], in the document's order; members as "a.b". */
export function fieldsOf(dialect) {
  const made = [];
  const walk = (schema, prefix) => {
    for (const [name, one] of Object.entries(schema.properties ?? {})) {
      const full = prefix + name;
      if (one.properties) {
        walk(one, `${full}.`);
        continue;
      }
      const choices = (one.anyOf ?? [one]).filter((choice) => choice.type !== "null");
      const told = (one.description ?? "").replaceAll("`", "");
      const preset = /Default: (.*?)\.(?: |$)/.exec(told)?.[1] ?? "unset";
      const note = told.replace(/ ?Here: (done|extension)\.$/, "").replace(/^(.*?) ?Default: .*?\.(?= |$)/, (_, range) => range && `${range}.`);
      made.push({ name: full, choices, note: note.trim(), preset, extension: told.endsWith("Here: extension.") });
    }
  };
  walk(dialect.schema, "");
  return made;
}

/** What of `controls` the dialect has and no view sets, as a body. */
export function chosen(dialect, controls) {
  const body = {};
  for (const { name } of fieldsOf(dialect)) {
    const value = controls[name];
    if (value === undefined || name in OWN) continue;
    put(body, name, value);
  }
  return body;
}

export function put(body, name, value) {
  const [outer, inner] = name.split(".");
  if (inner === undefined) body[outer] = value;
  else body[outer] = { ...body[outer], [inner]: value };
}

/** Whether an answer can come as a stream. */
const streams = (body) => !body.use_beam_search && !(body.best_of > (body.n ?? 1));

/** `body` with what the page needs to draw tokens; `seed` unless one was set. */
export function drawable(dialect, body, seed) {
  const made = { ...body, seed: body.seed ?? seed, logprobs: body.logprobs || 0, return_token_ids: true };
  if (!streams(body)) return made;
  const names = new Set(fieldsOf(dialect).map((field) => field.name));
  const options = { ...body.stream_options, include_usage: true };
  if (names.has("stream_options.include_obfuscation")) options.include_obfuscation = false;
  if (names.has("perf_metrics_in_response")) made.perf_metrics_in_response = true; // where the cached tokens are
  return { ...made, stream: true, stream_options: options };
}

/** What scores a text, in OpenAI's dialect: nothing is drawn. */
export const scoring = (model, prompt) => ({ model, prompt, max_tokens: 0, echo: true, logprobs: 0, return_token_ids: true });

/** Whether a dialect takes a prompt of token ids. */
function takesIds(dialect) {
  const prompt = fieldsOf(dialect).find((field) => field.name === "prompt");
  return JSON.stringify(prompt.choices).includes('"array"');
}

const known = new Map();
const MOST_KNOWN = 200;

async function idsOf(model, text, inside, signal) {
  const name = `${model} ${inside} ${text}`;
  if (!known.has(name)) {
    if (known.size >= MOST_KNOWN) known.delete(known.keys().next().value);
    known.set(name, await tokenize(model, text, inside, signal));
  }
  return known.get(name);
}

/** The ids of tokens, which are this model's or text: the ids as they were drawn, the text as the tokenizer cuts it. */
export async function ids(model, tokens, signal) {
  const all = tokens.map((token) => token.t).join("");
  if (!drawn(tokens)) return all === "" ? opening(model, signal) : idsOf(model, all, false, signal);
  const made = tokens[0].id === null ? [] : [...(await opening(model, signal))];
  for (let k = 0; k < tokens.length; ) {
    if (tokens[k].id !== null) {
      made.push(tokens[k++].id);
      continue;
    }
    let text = "";
    const inside = k > 0;
    while (k < tokens.length && tokens[k].id === null) text += tokens[k++].t;
    made.push(...(await idsOf(model, text, inside, signal)));
  }
  return made;
}

const drawn = (tokens) => tokens.some((token) => token.id !== null);

/** The prompt as it is sent: text where all of it is, or the dialect has no ids, else ids. */
export async function prompt(dialect, model, tokens, signal) {
  if (drawn(tokens) && takesIds(dialect)) return ids(model, tokens, signal);
  return tokens.map((token) => token.t).join("");
}
