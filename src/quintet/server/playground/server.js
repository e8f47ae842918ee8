// What the server is asked, and nothing else: models, the fields of a dialect, tokens, completions.

import { answered, reader } from "./answers.js";

const HERE = new URL(".", document.baseURI); // the page may stand beneath a path of a reverse proxy
const KEY = "quintet.key";

/** A refusal, in the server's words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The tab's own memory, which ends with it; never localStorage, never the tree that is exported.
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** Of other characters than a key has, the browser sends some never, and says then what it says where the server is away. */
function bearer(given) {
  if (!/^[!-~]+$/.test(given)) throw new Refused(401, "This is no API key: those have letters, digits and signs of ASCII, and no spaces.");
  return `Bearer ${given}`;
}

async function ask(path, { body, dialect = "openai", signal } = {}) {
  const headers = { "X-Completions-Dialect": dialect };
  if (key.get()) headers.Authorization = bearer(key.get());
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const url = new URL(path.replace(/^\//, ""), HERE);
  let answer;
  try {
    answer = await fetch(url, { method: body === undefined ? "GET" : "POST", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached.");
  }
  if (!answer.ok) throw new Refused(answer.status, message(await answer.text(), answer.status));
  return answer;
}

/** The words of an error in any of the five dialects. */
function message(text, status) {
  try {
    const body = JSON.parse(text);
    return body.error?.message ?? body.message ?? body.detail ?? text;
  } catch {
    return text || `The server answered ${status}.`;
  }
}

const json = async (path, options) => (await ask(path, options)).json();

/** [{id}] */
export async function models() {
  const { data } = await json("v1/models");
  return data.map(({ id }) => ({ id }));
}

const dialects = new Map();

/** What a dialect's document says: its base URL and the schema of a completion's body. */
export async function dialect(name) {
  if (!dialects.has(name)) {
    const { servers, paths } = await json(`openapi.json?dialect=${name}`);
    dialects.set(name, { name, base: servers[0].url, schema: paths["/completions"].post.requestBody.content["application/json"].schema });
  }
  return dialects.get(name);
}

/** The ids of a text that begins a prompt, or of one `inside` it, to which nothing is added. */
export async function tokenize(model, text, inside, signal) {
  return (await json("v1/tokenize", { body: { model, prompt: text, inside }, signal })).tokens;
}

const openings = new Map();

/** The ids that an empty prompt stands for: what a document begins with. */
export async function opening(model, signal) {
  if (!openings.has(model)) {
    const { choices } = await json("v1/completions", { body: { model, prompt: "", max_tokens: 0, return_token_ids: true }, signal });
    openings.set(model, choices[0].prompt_token_ids);
  }
  return openings.get(model);
}

/** The text that tokens write together. */
export const detokenize = async (model, tokens, signal) => (await json("v1/detokenize", { body: { model, tokens }, signal })).prompt;

const pieces = new Map();

/** The text of one token, alone. */
async function piece(model, id) {
  const name = `${model} ${id}`;
  if (!pieces.has(name)) pieces.set(name, await detokenize(model, [id]));
  return pieces.get(name);
}

/** The likeliest tokens after `ids`, [{id, t, p}]. In Cerebras' dialect, whose page has up to 20; the numbers are the same in all. */
export async function likeliest(model, prompt, many, signal) {
  const body = { model, prompt, max_tokens: 1, temperature: 0, logprobs: many, return_tokens_as_token_ids: true };
  const { choices } = await json("cerebras/completions", { body, dialect: "cerebras", signal });
  const listed = Object.entries(choices[0].logprobs.top_logprobs[0]).map(([name, p]) => ({ id: Number(name.slice(9)), p }));
  const best = listed.sort((a, b) => b.p - a.p || a.id - b.id).slice(0, many);
  return Promise.all(best.map(async ({ id, p }) => ({ id, p, t: await piece(model, id) })));
}

/** What a browser says of a connection that ends amid an answer is "network error". */
function broken(error) {
  throw error.name === "AbortError" ? error : new Refused(0, "The stream broke off.");
}

/** A completion's body as an object; for what is not streamed. */
export const complete = (dialect, body, signal) => json(`${dialect.base}/completions`, { body, dialect: dialect.name, signal });

/**
 * A completion, told as it comes: `heard(events)` gets what `answers.js` makes of each chunk, so that what came before a failure is heard.
 * Without `stream` in the body all comes at once.
 */
export async function generate(dialect, body, heard, signal) {
  const answer = await ask(`${dialect.base}/completions`, { body, dialect: dialect.name, signal });
  const read = reader();
  if (!body.stream) return heard(answered(read, await answer.json()));
  let rest = "";
  let done = false;
  const stream = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done: ended } = await stream.read().catch(broken);
    if (ended) break;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ")) continue; // a comment, in silence
      if (frame === "data: [DONE]") done = true;
      else heard(answered(read, JSON.parse(frame.slice(6))));
    }
  }
  if (!done) throw new Refused(0, "The stream broke off.");
}
