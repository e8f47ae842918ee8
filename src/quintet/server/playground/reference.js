// "Try it": a request that sets one field, sent to this server, and its answer as it came.

const HERE = new URL(".", document.baseURI); // the page may stand beneath a path of a reverse proxy
const KEPT = "quintet.key";
const MOST = 20000; // characters of an answer that are shown
const given = document.getElementById("given");
given.hidden = false;
given.elements.key.value = sessionStorage.getItem(KEPT) ?? "";
given.elements.key.addEventListener("change", () => sessionStorage.setItem(KEPT, given.elements.key.value.trim()));
given.addEventListener("submit", (event) => event.preventDefault());

function made(tag, settings = {}, ...children) {
  const element = Object.assign(document.createElement(tag), settings);
  element.append(...children);
  return element;
}

const address = (path) => new URL(path.slice(1), HERE).href;

function request(members) {
  return JSON.stringify({ prompt: given.elements.prompt.value, max_tokens: 16, ...members }, null, 2);
}

async function send(path, body, say, stop) {
  const headers = { "content-type": "application/json" };
  const key = given.elements.key.value.trim();
  if (key) headers.authorization = `Bearer ${key}`;
  const reply = await fetch(address(path), { method: "POST", headers, body, signal: stop });
  let text = "";
  for await (const part of pieces(reply)) {
    text += part;
    say(`${reply.status} ${reply.statusText}`, text.length > MOST ? `${text.slice(0, MOST)}\n…` : text);
    if (text.length > MOST) return;
  }
  if (reply.headers.get("content-type")?.startsWith("application/json")) say(`${reply.status} ${reply.statusText}`, JSON.stringify(JSON.parse(text), null, 2));
}

async function* pieces(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
  } finally {
    reader.cancel(); // of an answer that is longer than what is shown the server need not make the rest
  }
}

function form(details, members) {
  const path = `${details.closest("section").dataset.base}/completions`;
  const body = made("textarea", { value: request(members), spellcheck: false });
  const status = made("span", { className: "hint", role: "status" });
  const answer = made("pre", { tabIndex: 0 });
  answer.setAttribute("aria-label", "Answer");
  const button = made("button", { className: "main", type: "submit" }, "Send");
  const curl = made("button", { className: "quiet", type: "button", hidden: !navigator.clipboard }, "Copy as curl"); // HTTPS and this machine alone have one
  const element = made("form", { className: "try" },
    made("label", {}, `POST ${path}`, body), made("div", { className: "answer" }, made("span", {}, "Answer"), answer),
    made("div", { className: "row" }, button, curl, status));
  let running = null;
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = running = new AbortController();
    const say = (line, text) => { if (running === mine) { status.textContent = line; answer.textContent = text; } };
    say("Waiting for the answer", "");
    try {
      await send(path, body.value, say, mine.signal);
    } catch (error) {
      say("No answer", String(error.message ?? error));
    }
  });
  curl.addEventListener("click", async () => {
    const quoted = body.value.replaceAll("'", "'\\''");
    const key = given.elements.key.value.trim() ? ` -H "authorization: Bearer $QUINTET_API_KEY"` : "";
    await navigator.clipboard.writeText(`curl ${address(path)} -H 'content-type: application/json'${key} -d '${quoted}'`);
    status.textContent = "Copied";
  });
  return element;
}

// A field whose example is an empty name of a model gets the first that is served.
async function named(section, members) {
  if (members.model !== "") return members;
  const key = given.elements.key.value.trim();
  const asked = { headers: key ? { authorization: `Bearer ${key}` } : {} };
  const reply = await fetch(address(`${section.dataset.base}/models`), asked).catch(() => null); // whoever sends it will see why
  const list = reply?.ok ? await reply.json() : [];
  return { ...members, model: (list.data ?? list)[0]?.id ?? "" };
}

for (const details of document.querySelectorAll("article details")) {
  details.addEventListener("toggle", async () => {
    if (!details.open || details.dataset.made) return;
    details.dataset.made = "yes";
    details.append(form(details, await named(details.closest("section"), JSON.parse(details.dataset.members))));
  });
}
