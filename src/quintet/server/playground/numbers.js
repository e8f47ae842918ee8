// What is computed of log-probabilities, and how numbers are written.

/** exp of the mean surprise of the tokens whose log-probability is known; null if there is none. */
export function perplexity(logprobs) {
  const known = logprobs.filter((value) => value !== null);
  if (known.length === 0) return null;
  return Math.exp(-known.reduce((sum, value) => sum + value, 0) / known.length);
}

/** In bits: of the alternatives that are listed, and of all others taken as one. The whole distribution's is at least that. */
export function entropy(logprobs) {
  const listed = logprobs.map(Math.exp);
  const rest = 1 - listed.reduce((sum, value) => sum + value, 0);
  return [...listed, rest].reduce((sum, value) => (value > 0 ? sum - value * Math.log2(value) : sum), 0);
}

/** Surprise of a token, in bits. */
export const bits = (logprob) => -logprob / Math.LN2;

const BOUNDS = [0.8, 0.5, 0.2, 0.05, 0.01];

/** The class of a token's colour: p0 for the most likely to p5; none where the probability is not known. */
export function shade(logprob) {
  if (logprob === null) return "";
  const probability = Math.exp(logprob);
  const found = BOUNDS.findIndex((bound) => probability >= bound);
  return `p${found < 0 ? BOUNDS.length : found}`;
}

export const SHADES = ["80 % and more", "50 %", "20 %", "5 %", "1 %", "less"];

export function percent(logprob) {
  const value = Math.exp(logprob) * 100;
  if (value >= 10) return `${value.toFixed(1)} %`;
  if (value >= 0.01) return `${value.toFixed(2)} %`;
  return value === 0 ? "0 %" : "< 0.01 %";
}

export const fixed = (value, digits = 2) => (value === null || !Number.isFinite(value) ? "–" : value.toFixed(digits));
export const count = (value) => value.toLocaleString("en");

/** How a token's text is shown where it stands alone. */
export function shown(text) {
  if (text === "") return "(no text)";
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ /, "␣").replace(/ $/, "␣");
}

/** The longest common parts of two lists of strings, as [[kind, item]], kind "same", "left" or "right". */
export function diff(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start++;
  const a = left.slice(start);
  const b = right.slice(start);
  const rows = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      rows[i][j] = a[i] === b[j] ? rows[i + 1][j + 1] + 1 : Math.max(rows[i + 1][j], rows[i][j + 1]);
  const made = left.slice(0, start).map((item) => ["same", item]);
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      made.push(["same", a[i]]);
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && rows[i + 1][j] >= rows[i][j + 1])) made.push(["left", a[i++]]);
    else made.push(["right", b[j++]]);
  }
  return made;
}

/** The lines of tokens, [{first, end, perplexity}]; a token belongs to the line in which it begins, a line's end to the line it ends. */
export function lines(tokens) {
  const made = [];
  let first = 0;
  const close = (end) => {
    made.push({ first, end, perplexity: perplexity(tokens.slice(first, end).map((token) => token.p)) });
    first = end;
  };
  tokens.forEach((token, k) => {
    const ends = token.t.split("\n").length - 1;
    if (ends > 0) close(k + 1);
    for (let more = 1; more < ends; more++) close(k + 1); // lines without a token of their own
  });
  close(tokens.length);
  return made;
}
