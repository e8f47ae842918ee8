// The same request as a command line and in the Python SDK of each provider.

import { fieldsOf } from "./request.js";

const OPENAI = { module: "openai", client: "OpenAI" };
const SDKS = {
  openai: { ...OPENAI, package: "openai", path: "/openai/v1", extra: [] },
  fireworks: { module: "fireworks", client: "Fireworks", package: "fireworks-ai", path: "/fireworks/inference", extra: [] },
  together: { module: "together", client: "Together", package: "together", path: "/together", extra: [] },
  cerebras: { module: "cerebras.cloud.sdk", client: "Cerebras", package: "cerebras-cloud-sdk", path: "/cerebras", extra: [] },
  // Novita's own SDK has no completions; OpenAI's does not know these of its fields.
  novita: { ...OPENAI, package: "openai", path: "/novita/openai/v1", extra: ["top_k", "min_p", "repetition_penalty"] },
};

/** root: the server's address, without a slash at its end; keyed: whether a key is needed. */
export function curl(dialect, root, body, keyed) {
  const lines = [`curl ${root}${dialect.base}/completions`, `-H "Content-Type: application/json"`];
  if (keyed) lines.push(`-H "Authorization: Bearer $QUINTET_API_KEY"`);
  if (body.stream) lines.push("--no-buffer");
  lines.push(`-d '${JSON.stringify(body, null, 2).replaceAll("'", `'\\''`)}'`);
  return lines.join(" \\\n  ");
}

export function python(dialect, root, body, keyed) {
  const sdk = SDKS[dialect.name];
  const page = new Set(fieldsOf(dialect).filter((field) => !field.extension).map((field) => field.name.split(".")[0]));
  const given = [];
  const extra = {};
  for (const [name, value] of Object.entries(body)) {
    if (page.has(name) && !sdk.extra.includes(name)) given.push(`    ${name}=${literal(value, 4)},`);
    else extra[name] = value;
  }
  if (Object.keys(extra).length) given.push(`    extra_body=${literal(extra, 4)},`);
  const shown = body.stream ? ["for chunk in answer:", "    for choice in chunk.choices:", `        print(choice.text, end="", flush=True)`] : ["for choice in answer.choices:", "    print(choice.text)"];
  const key = keyed ? `os.environ["QUINTET_API_KEY"]` : `"none"`;
  return [
    `# pip install ${sdk.package}`,
    ...(keyed ? ["import os", ""] : []),
    `from ${sdk.module} import ${sdk.client}`,
    "",
    `client = ${sdk.client}(base_url="${root}${sdk.path}", api_key=${key})`,
    "answer = client.completions.create(",
    ...given,
    ")",
    ...shown,
  ].join("\n");
}

/** A JSON value as Python writes it. */
function literal(value, indent) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const items = list ? value.map((one) => literal(one, indent + 4)) : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, indent + 4)}`);
  const [open, close] = list ? "[]" : "{}";
  const flat = open + items.join(", ") + close;
  if (flat.length <= 88 || list) return flat;
  return `${open}\n${items.map((item) => `${" ".repeat(indent + 4)}${item},\n`).join("")}${" ".repeat(indent)}${close}`;
}
