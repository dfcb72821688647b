// Runs the examples of docs/api.md and docs/admin.md and the tool call of README.md: every command gives the result that the page shows,
// every field's example is accepted, and every field and path of the server is on the page. Usage: node examples.mjs TANDEM
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { check, finish, post, same, serve } from "./serve.mjs";

const root = join(import.meta.dirname, "..", ".."), page = readFileSync(join(root, "docs/api.md"), "utf8");
const pages = page + readFileSync(join(root, "docs/admin.md"), "utf8");
const server = await serve(process.argv[2]);

// --- what is shown: "…" is anything, in a text, for a value, as the rest of an object or of a list
const TIMES = /^created|_ms$|_s$|_second$|^logprob$|size$|bytes$/;
// "…" stands for any text, and as a line of its own for any number of lines.
const quoted = (text) => text.split("…").map((x) => x.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("[^]*?");
const glob = (pattern) => new RegExp(`^${pattern.split("\n…\n").map(quoted).join("\n(?:[^]*?\n)?")}$`);
function differs(got, want, path) {
  if (want === "…") return "";
  if (typeof want === "string" && typeof got === "string") return glob(want).test(got) ? "" : `${path} is ${JSON.stringify(got)}`;
  if (typeof want === "number" && typeof got === "number") return want === got || TIMES.test(path.split(".").pop()) ? "" : `${path} is ${got}`;
  if (Array.isArray(want) && Array.isArray(got)) {
    const open = want.at(-1) === "…", n = want.length - open;
    if (open ? got.length < n : got.length !== n) return `${path} has ${got.length} items`;
    return want.slice(0, n).map((x, i) => differs(got[i], x, `${path}[${i}]`)).find(Boolean) ?? "";
  }
  if (want && got && typeof want === "object" && typeof got === "object") {
    const keys = Object.keys(want).filter((k) => k !== "…"), extra = Object.keys(got).find((k) => !keys.includes(k));
    if (extra && !("…" in want)) return `${path}.${extra} is not shown`;
    return keys.map((k) => (k in got ? differs(got[k], want[k], `${path}.${k}`) : `${path}.${k} is missing`)).find(Boolean) ?? "";
  }
  return Object.is(got, want) ? "" : `${path} is ${JSON.stringify(got)}`;
}

let n = 0;
function runs(command, kind, shown) {
  const out = execFileSync("bash", ["-c", command.replaceAll("http://127.0.0.1:8080", server.url)], { encoding: "utf8" }).replaceAll("\r", "");
  const what = command.split("\n")[0];
  if (kind === "text") check(glob(shown.trim()).test(out.trim()), `${what} gives ${out}`);
  else same(differs(JSON.parse(out), JSON.parse(shown), "reply"), "", `${what} gives ${out.slice(0, 600)}`);
}
for (const [, ...example] of pages.matchAll(/```sh\n(curl [^]*?)```\n```(json|text)\n([^]*?)```/g)) {
  n++;
  runs(...example);
}
same(n, pages.split("```sh\n").length - 1, "every command has its outcome");

const demos = [...readFileSync(join(root, "README.md"), "utf8").matchAll(/```sh\n(curl [^`]*)```\n```(json|text)\n([^`]*)```/g)];
same(demos.length, 1, "README.md shows a call of a tool");
for (const [, ...demo] of demos) runs(...demo);
check(n > 12, `${n} commands`);

// --- fields
const base = {
  C: ["/v1/chat/completions", { messages: [{ role: "user", content: "Hi" }], max_tokens: 4 }],
  T: ["/v1/completions", { prompt: "Hi", max_tokens: 4 }],
  N: ["/completion", { prompt: "Hi", n_predict: 4 }],
  R: ["/v1/responses", { input: "Hi", max_output_tokens: 4 }],
  M: ["/v1/messages", { messages: [{ role: "user", content: "Hi" }], max_tokens: 4 }],
};
const letters = Object.keys(base), shown = { ...Object.fromEntries(letters.map((x) => [x, new Set()])), tokenize: new Set(), detokenize: new Set() };
const ours = page.replace(/^## Fields of other servers[^]*?^(?=## )/m, "");
for (const [, field, of, example] of ours.matchAll(/^\| `([a-z_.]+)` \| ([A-Z, ]+|all) \|.*?\| `(".*?)` \|.*\|$/gm))
  for (const where of of === "all" ? letters : of.split(", ")) {
    const [path, body] = base[where], more = JSON.parse(`{${example}}`);
    check(field.split(".")[0] in more, `the example of ${field} has it`);
    const r = await post(server.url, path, { ...body, ...more });
    same([r.status, r.status === 200 ? "" : await r.text()], [200, ""], `${path} with ${example}`);
    shown[where].add(field);
  }
for (const [, field, example] of ours.matchAll(/^\| `([a-z_]+)` \| (?!all)[a-z, ]+ \| `(".*?)` \|.*\|$/gm)) {
  const of = field === "tokens" ? "detokenize" : "tokenize";
  same((await post(server.url, `/${of}`, { content: "Hi", ...JSON.parse(`{${example}}`) })).status, 200, `/${of} with ${example}`);
  shown[of].add(field);
}
const source = readFileSync(join(root, "src/server/fields.c"), "utf8");
const wheres = { FIELD_CHAT: ["C"], FIELD_TEXT: ["T"], FIELD_BOTH: ["C", "T"], FIELD_RESPONSES: ["R"], FIELD_MESSAGES: ["M"], FIELD_ANSWERS: letters, FIELD_NATIVE: ["N"], FIELD_TEXTS: ["T", "N"], FIELD_GENERATE: ["C", "T", "N"], FIELD_TOKENIZE: ["tokenize"], FIELD_DETOKENIZE: ["detokenize"] };
let fields = 0;
Object.assign(wheres, { FIELD_PARK: [], FIELD_BENCH: [] }); // docs/admin.md's, of tests/e2e/admin.mjs
for (const [, name, where] of source.matchAll(/^ {4}\{"([a-z_.]+)",\s+FIELD_\w+,\s+(FIELD_\w+),/gm))
  for (const w of wheres[where] ?? [where]) {
    fields++;
    check(shown[w]?.has(name), `${name} (${where}) is in docs/api.md`);
  }
same(fields, Object.values(shown).reduce((sum, s) => sum + s.size, 0), "docs/api.md has no field that the server has not");

// --- fields of other servers
const rules = { REFUSED: "refused", WARNED: "ignored, with a warning", IDLE: "no effect" };
const places = { FIELD_ANSWERS: "all", FIELD_CHAT: "C", FIELD_MESSAGES: "M", FIELD_NATIVE: "N", FIELD_BOTH: "C, T", FIELD_FRAMED: "R, M", FIELD_RESPONSES: "R" };
const others = [...readFileSync(join(root, "src/server/dialects.c"), "utf8").matchAll(/^ {4}\{"([a-z_.]+)",\s+(FIELD_\w+),\s+(\w+),\s+"((?:[^"\\]|\\.)*)",/gm)].map(
  ([, name, where, rule, off]) => `${name} | ${places[where]} | ${rules[rule]} | ${off.replaceAll("\\", "").split(" ").filter(Boolean).map((x) => `\`${x}\``).join(" ")}`);
const listed = [...page.matchAll(/^\| `([a-z_.]+)` \| ([A-Z, ]+|all) \| (refused|ignored, with a warning|no effect) \| (.*?) \| .*\|$/gm)].map(
  ([, name, where, rule, off]) => `${name} | ${where} | ${rule} | ${off}`);
same(listed, others, "docs/api.md has the fields of other servers as the code has them");
check(others.length > 60, `${others.length} fields of other servers`);

// --- paths
const routes = [...readFileSync(join(root, "src/server/route.c"), "utf8").matchAll(/^ {4}\{"(GET|POST)",\s+"(\/[a-z/_-]*)"/gm)];
for (const [, method, path] of routes) {
  const written = [`\`${method} ${path}`, `\`${method} /v1${path}`].some((x) => page.includes(x));
  check(written || path.startsWith("/page"), `${method} ${path} is in docs/api.md`);
}
check(routes.length > 8, `${routes.length} paths`);
console.log(`${n} commands, ${fields} fields, ${routes.length} paths`);
await server.stop();
finish();
