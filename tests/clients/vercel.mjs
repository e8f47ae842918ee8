// Runs jobs from standard input, [{base, model, stream, options, body}], and prints what Vercel's AI SDK made of the answers, as JSON.
// `body` are fields that the SDK has no option for.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Packages are looked up in the folder that they were installed in, not beside this file.
const require = createRequire(pathToFileURL(`${process.env.QUINTET_NODE}/package.json`));
const { generateText, streamText } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");

async function run({ base, model, stream, options, body }) {
  const provider = createOpenAICompatible({ name: "quintet", baseURL: base, apiKey: "local", includeUsage: true });
  const asked = { model: provider.completionModel(model), maxRetries: 0, ...options, providerOptions: { quintet: body ?? {} } };
  if (!stream) {
    const { text, finishReason, usage, response } = await generateText(asked);
    return { text, finishReason, usage, id: response.id };
  }
  const parts = [];
  const failures = [];
  const found = streamText({ ...asked, onError: ({ error }) => failures.push(String(error?.message ?? error)) });
  try {
    for await (const part of found.textStream) parts.push(part);
  } catch (error) {
    failures.push(String(error?.message ?? error));
  }
  if (failures.length) return { parts, failures };
  return { parts, text: await found.text, finishReason: await found.finishReason, usage: await found.usage };
}

const answers = [];
for (const job of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    answers.push(await run(job));
  } catch (error) {
    answers.push({ error: error.message, status: error.statusCode ?? null, name: error.name });
  }
}
process.stdout.write(JSON.stringify(answers));
