// Requests of coding agents as fixtures: tests/all/agents TANDEM --record [NAME...] writes tests/golden/agents/NAME.json, which
// tests/server/agents.mjs sends again without the agents. A fixture has the structure of the requests: headers, fields, tools and
// their schemas, markup. Prose is replaced by other words of the same lengths, so that prompts stay as long as they were and
// nobody's prompts are in this repository. Ids, dates, paths and names of the machine are replaced too.
import { mkdirSync, writeFileSync } from "node:fs";
import { homedir, hostname } from "node:os";
import { fileURLToPath } from "node:url";

const WORDS = ("the and for you use can are not any all file code with that this from when name list path text tool make work line same " +
  "write which other value first lines start their after about there could would never under table string number should before " +
  "result option output return folder simple message another content example between command project without contain current " +
  "document position question language complete function material together paragraph described sometimes important different " +
  "attention").split(" ");
const byLength = Object.groupBy(WORDS, (w) => w.length), LONGEST = Math.max(...WORDS.map((w) => w.length));
const hash = (word) => [...word].reduce((h, c) => (Math.imul(h, 31) + c.charCodeAt(0)) >>> 0, 7);

function otherWord(word) {
  let out = "";
  for (let h = hash(word); out.length < word.length; h = Math.imul(h, 7) >>> 0) {
    const list = byLength[Math.min(word.length - out.length, LONGEST)] ?? ["an"];
    out += list[h % list.length].slice(0, word.length - out.length);
  }
  return /^[A-Z]/.test(word) ? out[0].toUpperCase() + out.slice(1) : out;
}

// Markup stays: a tokenizer has tokens of its own for some of it.
const otherProse = (text) => text.replace(/<\/?[a-z][\w-]*>|[A-Za-z]{3,}|\d{2,}/g, (x) => (x[0] === "<" ? x : /\d/.test(x) ? "20".repeat(x.length).slice(0, x.length) : otherWord(x)));

const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;
const otherIds = (text) => text.replace(UUID, "00000000-0000-4000-8000-000000000000").replace(/\bses_\w+/g, "ses_0").replace(/\b[0-9a-f]{32,64}\b/g, (x) => "0".repeat(x.length)).replace(/\b1[6-9]\d{11}\b/g, "1700000000000");

const PROSE = new Set(["text", "content", "description", "instructions", "system"]);
function scrub(x, key, keep) {
  if (typeof x === "string") {
    if (!PROSE.has(key)) return otherIds(x);
    return x.split(keep).map(otherProse).join(keep);
  }
  if (Array.isArray(x)) return x.map((y) => scrub(y, key, keep));
  if (x === null || typeof x !== "object") return x;
  return Object.fromEntries(Object.entries(x).map(([k, v]) => [k, scrub(v, k, keep)]));
}

const DROPPED = new Set(["host", "connection", "content-length", "accept-encoding"]); // the client of the replay has its own
const headersOf = (headers) => Object.fromEntries(Object.entries(headers).filter(([k]) => !DROPPED.has(k)).map(([k, v]) => [k, otherIds(v)]));

// said: what was heard between agent and server, {method, path, headers, body}. The question is kept as it is; `home` is the agent's.
export function saveFixture(name, said, question, home) {
  const requests = said.map((e) => ({ method: e.method, path: e.path, headers: headersOf(e.headers), body: scrub(JSON.parse(e.body), "", question) }));
  const names = [[home, "/home/user"], [homedir(), "/home/user"], [hostname(), "machine"]].filter(([from]) => from.length > 2);
  const patterns = names.map(([from, to]) => [new RegExp(`(?<![<\\w])${from.replaceAll(".", "\\.")}(?!\\w)`, "g"), to]);
  let text = JSON.stringify({ agent: name, question, requests }, null, 1);
  for (const [from, to] of patterns) text = text.replace(from, to);
  const dir = fileURLToPath(new URL("../golden/agents/", import.meta.url));
  mkdirSync(dir, { recursive: true });
  writeFileSync(`${dir}${name}.json`, text + "\n");
  console.log(`${name.padEnd(12)} ${requests.length} requests recorded, ${(text.length / 1024).toFixed(0)} KB`);
}
