// Coding agents, versions as in tests/all/package.json, against `tandem serve` with nano, or the model that TANDEM_MODEL names: each answers one question without anybody
// at the keyboard and shows what the server said, byte for byte. Then what makes agents shorten a conversation, and what makes
// clients wait. docs/agents.md has the configurations that are used here. Usage: node agents.mjs TANDEM [--record] [NAME...]
// --record writes what the agents send to tests/golden/agents, for tests/server/agents.mjs.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";
import { saveFixture } from "./record.mjs";
import { check, CLEVER, finish, group, matches, post, same, serve, until } from "../server/serve.mjs";

const [tandem, ...rest] = process.argv.slice(2), recording = rest.includes("--record"), only = rest.filter((x) => x !== "--record");
const modules = fileURLToPath(new URL("node_modules/", import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), "tandem-agents-"));
process.on("exit", () => rmSync(scratch, { recursive: true, force: true }));
const QUESTION = "What is 27 plus 58?", LIMIT_MS = 170000;

// --- between an agent and the server: all that is said. The world beyond this machine is not there.
const said = [];
function listen(handle, onConnect) {
  return new Promise((done) => {
    const s = createServer(handle).listen(0, "127.0.0.1", () => done(s));
    if (onConnect) s.on("connect", onConnect);
    s.unref();
  });
}
async function between(to) {
  const s = await listen((q, r) => {
    const entry = { method: q.method, path: q.url, headers: q.headers, body: "", status: 0, reply: "", at: Date.now() };
    const chunks = [], answer = [];
    said.push(entry);
    q.on("data", (d) => chunks.push(d));
    q.on("end", () => {
      const bytes = Buffer.concat(chunks);
      entry.body = bytes.toString();
      const up = request({ host: "127.0.0.1", port: to.port, method: q.method, path: q.url, headers: { ...q.headers, host: `127.0.0.1:${to.port}` } }, (a) => {
        entry.status = a.statusCode;
        r.writeHead(a.statusCode, a.headers);
        a.on("data", (d) => (answer.push(d), r.write(d)));
        a.on("end", () => {
          entry.reply = Buffer.concat(answer).toString();
          r.end();
        });
        a.on("error", () => r.destroy());
      });
      up.on("error", () => r.destroy());
      r.on("close", () => up.destroy());
      up.end(bytes);
    });
  });
  return s.address().port;
}
const beyond = new Set();
const nowhere = await listen((q, r) => (beyond.add(q.url), r.writeHead(502).end()), (q, socket) => (beyond.add(q.url), socket.destroy()));

// --- agents
const json = (x) => JSON.stringify(x, null, 2);
const PROGRAMS = { // and what they need to leave the world alone
  opencode: { program: "opencode-linux-x64-baseline/bin/opencode", quiet: { OPENCODE_DISABLE_MODELS_FETCH: "1", OPENCODE_DISABLE_AUTOUPDATE: "1" } },
  codex: { program: "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex" },
  "claude-code": { program: "@anthropic-ai/claude-code-linux-x64/claude" },
  pi: { script: "@mariozechner/pi-coding-agent/dist/cli.js", quiet: { PI_OFFLINE: "1", PI_TELEMETRY: "0" } },
  "qwen-code": { script: "@qwen-code/qwen-code/cli-entry.js" },
  cline: { program: "@cline/cli-linux-x64/bin/cline", quiet: { CLINE_SESSION_BACKEND_MODE: "local" } }, // no process that outlives it
};
// As docs/agents.md has it: files of the home directory, what is exported, and the command's arguments.
const page = readFileSync(new URL("../../docs/agents.md", import.meta.url), "utf8");
function fromPage(name) {
  const section = page.split(`\n## ${name}\n`)[1].split("\n## ")[0], at = (url, text) => text.replaceAll("http://127.0.0.1:8080", url);
  const files = [...section.matchAll(/^`~\/([^`\n]*)`\n```\w+\n(.*?)^```$/gms)].map(([, path, text]) => [path, text]);
  const lines = /^```sh\n(.*?)^```$/ms.exec(section)[1].trim().split("\n"), command = lines.pop();
  const env = lines.flatMap((l) => l.replace("export ", "").split(" ").map((x) => x.split(/=(.*)/s).slice(0, 2)));
  return {
    files: (url) => Object.fromEntries(files.map(([path, text]) => [path, at(url, text)])),
    env: (url) => Object.fromEntries(env.map(([k, v]) => [k, at(url, v)])),
    args: [...command.matchAll(/"([^"]*)"|(\S+)/g)].slice(1).map((m) => m[1] ?? m[2]),
  };
}
const AGENTS = Object.fromEntries(Object.entries(PROGRAMS).map(([name, p]) => [name, { ...p, ...fromPage(name) }]));

// {code, out, err, seconds}; nothing of this machine's own settings is seen, and nobody waits for ever.
let homes = 0;
function launch(agent, url, { args = agent.args, home = join(scratch, `home${homes++}`) } = {}) {
  const work = join(home, "work"), start = Date.now();
  mkdirSync(work, { recursive: true });
  for (const [path, text] of Object.entries(agent.files(url))) {
    mkdirSync(dirname(join(home, path)), { recursive: true });
    writeFileSync(join(home, path), text);
  }
  const proxy = `http://127.0.0.1:${nowhere.address().port}`, local = "127.0.0.1,localhost";
  const env = {
    PATH: `${dirname(process.execPath)}:/usr/local/bin:/usr/bin:/bin`, HOME: home, TMPDIR: home, LANG: "C.UTF-8",
    HTTP_PROXY: proxy, HTTPS_PROXY: proxy, http_proxy: proxy, https_proxy: proxy, NO_PROXY: local, no_proxy: local, ...agent.quiet, ...agent.env(url),
  };
  const command = agent.script ? [process.execPath, modules + agent.script, ...args] : [modules + agent.program, ...args];
  return new Promise((done) => {
    const child = spawn(command[0], command.slice(1), { cwd: work, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
    let out = "", err = "";
    const kill = () => {
      try { process.kill(-child.pid, "SIGKILL"); } catch { /* it has ended */ }
    };
    const timer = setTimeout(kill, LIMIT_MS);
    child.stdout.on("data", (d) => (out += d));
    child.stderr.on("data", (d) => (err += d));
    child.on("error", (e) => (err += e));
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      kill(); // what it has started
      done({ code: code ?? signal, out, err, seconds: (Date.now() - start) / 1000 });
    });
  });
}

// --- what the server said
const events = (text) => [...text.matchAll(/^data: (\{.*)$/gm)].map((m) => JSON.parse(m[1]));
const APIS = {
  "/v1/chat/completions": {
    joined: (text) => events(text).map((e) => e.choices?.[0]?.delta?.content ?? "").join(""),
    whole: (r) => r.choices?.[0]?.message.content,
  },
  "/v1/responses": {
    joined: (text) => events(text).filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join(""),
    whole: (r) => r.output?.flatMap((o) => o.content ?? []).map((c) => c.text ?? "").join(""),
  },
  "/v1/messages": {
    joined: (text) => events(text).filter((e) => e.type === "content_block_delta").map((e) => e.delta.text ?? "").join(""),
    whole: (r) => r.content?.map((c) => c.text ?? "").join(""),
  },
};
const pathOf = (e) => e.path.split("?")[0];

async function oneTurn(name, server, port) {
  const from = said.length, agent = AGENTS[name];
  const home = join(scratch, `home-${name}`), r = await launch(agent, `http://127.0.0.1:${port}`, { home });
  const what = `${name}: ${r.err.slice(-600)}`, all = said.slice(from).filter((e) => APIS[pathOf(e)]);
  same(r.code, 0, `${name} exits well (${what})`);
  const main = all.find((e) => e.status === 200 && JSON.parse(e.body).tools?.length); // others ask for titles and the like
  if (!check(main, `${name} has asked (${what})`)) return;
  const api = APIS[pathOf(main)], body = JSON.parse(main.body), text = api.joined(main.reply);
  matches(text, CLEVER ? /The answer is 85\.$/ : /./, `${name}: the answer`);
  check(r.out.includes(text), `${name} shows the server's bytes: ${JSON.stringify(r.out.slice(-400))}`);
  const { stream, stream_options, ...plain } = body;
  const again = await (await post(server.url, main.path, plain)).json();
  // With the default temperature, nano is sure of each token.
  check(CLEVER ? api.whole(again) === text : api.whole(again), `${name}: the same request, whole: ${api.whole(again)} instead of ${text}`);
  const failed = all.filter((e) => e.status !== 200);
  same(failed.map((e) => [e.path, e.status, e.reply.slice(0, 200)]), [], `${name}: no request is refused`);
  if (recording) saveFixture(name, all, QUESTION, home);
  const tokens = again.usage?.prompt_tokens ?? again.usage?.input_tokens + (again.usage?.cache_read_input_tokens ?? 0);
  console.log(`${name.padEnd(12)} ${pathOf(main).padEnd(22)} ${all.length} requests, ${(main.body.length / 1024).toFixed(0)} KB, ${body.tools?.length ?? 0} tools, ${tokens} tokens, ${r.seconds.toFixed(1)} s; ${Object.keys(main.headers).filter((h) => /session|affinity|conversation/.test(h)).join(" ")}`);
}

// --- a conversation that is too long
// opencode is one file, with the text of its program in it: its expressions for too long, and for what only sounds like it.
function opencodePatterns() {
  const text = readFileSync(modules + AGENTS.opencode.program), at = text.indexOf("[/prompt is too long/i,");
  const [, yes, no] = /^(\[.*?\/i\]),[\w$]+=(\[.*?\/i\])/s.exec(text.subarray(at, at + 8192).toString("latin1"));
  const [isLong, isNot] = [yes, no].map((list) => new Function(`return ${list}`)());
  check(isLong.length > 10 && isNot.length > 1, "opencode's patterns are found");
  return (message) => !isNot.some((p) => p.test(message)) && isLong.some((p) => p.test(message));
}

let known;
const judges = () => (known ??= readJudges());
async function readJudges() {
  const { isContextOverflow } = await import(`${modules}@mariozechner/pi-ai/dist/utils/overflow.js`);
  return Object.entries({ pi: (errorMessage) => isContextOverflow({ stopReason: "error", errorMessage }), opencode: opencodePatterns() });
}
async function tooLong() {
  const small = await serve(tandem, ["--ctx", "1024"]), long = "one two three ".repeat(2000), messages = [{ role: "user", content: long }];
  const asks = { "/v1/chat/completions": { messages }, "/v1/completions": { prompt: long }, "/v1/responses": { input: long }, "/v1/messages": { messages, max_tokens: 10 } };
  for (const [path, body] of Object.entries(asks)) {
    const r = await post(small.url, path, body), { message } = (await r.json()).error;
    same(r.status, 400, `${path}: too long`);
    for (const [who, isLong] of await judges()) check(isLong(message), `${path}: ${who} takes it for too long: ${message}`);
  }
  await small.stop();
}

// Two turns, the second of which does not fit any more: it is refused, the first one is put in few words, and the answer comes.
const LONG = {
  pi: {
    ctx: 5120, first: ["--model", "tandem/nano", "-p"], second: ["--model", "tandem/nano", "-c", "-p"],
    more: (files) => ({ ...files, ".pi/agent/settings.json": json({ compaction: { enabled: true, reserveTokens: 1000, keepRecentTokens: 200 } }) }),
  },
  opencode: {
    ctx: 3072, first: ["run"], second: ["run", "--continue"],
    more: ({ [".config/opencode/opencode.json"]: text }) => ({ ".config/opencode/opencode.json": json({ ...JSON.parse(text), tools: { "*": false }, agent: { build: { prompt: "You are a helper." } } }) }),
  },
};
async function shortens(name) {
  const { ctx, first, second, more } = LONG[name], base = AGENTS[name], home = join(scratch, `long-${name}`), from = said.length;
  const small = await serve(tandem, ["--ctx", String(ctx)]), url = `http://127.0.0.1:${await between(small)}`;
  const agent = { ...base, files: (at) => more(base.files(at)) }, filler = (word) => `Remember this: ${`${word} `.repeat(700)}\n${QUESTION}`;
  const a = await launch(agent, url, { home, args: [...first, filler("one two")] });
  same(a.code, 0, `${name}: the first turn (${a.err.slice(-300)})`);
  const b = await launch(agent, url, { home, args: [...second, filler("three four")] });
  check(typeof b.code === "number", `${name}: the second turn ends by itself, not by ${b.code}`);
  const [refused, summary, retry] = said.slice(from).slice(-3), words = (e) => APIS[pathOf(e)].joined(e.reply);
  same([refused, summary, retry].map((e) => e.status), [400, 200, 200], `${name}: too long, summary, answer (${b.err.slice(-300)})`);
  matches(summary.body, /summar/, `${name} asks for a summary`);
  check(retry.body.length < refused.body.length && retry.body.includes(JSON.stringify(words(summary)).slice(1, -1)), `${name} goes on from the summary: ${JSON.stringify(words(summary))}`);
  matches(words(retry), /The answer is 85\.$/, `${name}: the answer to what had been too long`);
  console.log(`${name.padEnd(12)} shortens what is too long: ${refused.body.length} bytes were refused, ${retry.body.length} go on (exit code ${b.code})`);
  await small.stop();
}

// --- a full queue
// The only lane is held until the client was told twice to come again; then it is answered. How long it has waited for both.
async function waits(name, path, ask) {
  const full = await serve(tandem, ["--max-lanes", "1", "--set", "queue_max=0", "--ctx", "65536"]), at = await between(full), from = said.length, stop = new AbortController();
  await post(full.url, "/v1/completions", { prompt: "Hi", stream: true, ignore_eos: true, speculative: "off", max_tokens: 60000 }, { signal: stop.signal });
  const tries = () => said.slice(from).filter((e) => e.path === path && e.status);
  const answer = ask(`http://127.0.0.1:${at}`);
  answer.catch(() => {});
  await until(() => tries().length >= 2, `${name} asks again`, 30000);
  stop.abort();
  matches(await answer, /85/, `${name} is answered in the end`);
  const status = tries().map((e) => e.status), waited = tries().at(-1).at - tries()[0].at;
  same(status, [429, 429, 200], `${name} is told to come again`);
  for (const [who, isLong] of await judges()) check(!isLong(JSON.parse(tries()[0].reply).error.message), `${who} takes a full queue for what it is`);
  check(waited >= 1950 && waited < 5000, `${name} waits a second each time, as it was told: ${waited} ms`);
  await full.stop("SIGKILL");
}
const messages = [{ role: "user", content: QUESTION }], model = "nano", apiKey = "none";
const CLIENTS = {
  openai: ["/v1/chat/completions", async (url) => (await new OpenAI({ baseURL: `${url}/v1`, apiKey }).chat.completions.create({ model, messages })).choices[0].message.content],
  "openai, responses": ["/v1/responses", async (url) => (await new OpenAI({ baseURL: `${url}/v1`, apiKey }).responses.create({ model, input: QUESTION })).output_text],
  "@anthropic-ai/sdk": ["/v1/messages", async (url) => (await new Anthropic({ baseURL: url, apiKey }).messages.create({ model, messages, max_tokens: 200 })).content[0].text],
  ai: ["/v1/chat/completions", async (url) => (await generateText({ model: createOpenAICompatible({ name: "tandem", baseURL: `${url}/v1`, apiKey })(model), prompt: QUESTION })).text],
};

// --- all of it
const wanted = (name) => (only.length ? only.includes(name) : !recording || name in AGENTS);
if (wanted("words")) await group("too long", tooLong);
if (wanted("shortens")) for (const name of Object.keys(LONG)) await group(`too long for ${name}`, () => shortens(name));
if (wanted("waits")) for (const [name, [path, ask]] of Object.entries(CLIENTS)) await group(name, () => waits(name, path, ask));
if (Object.keys(AGENTS).some(wanted)) {
  const server = await serve(tandem, ["--ctx", "65536"]), port = await between(server);
  for (const name of Object.keys(AGENTS)) if (wanted(name)) await group(name, () => oneTurn(name, server, port));
  same(await server.stop(), 0, "SIGTERM ends the server");
}
if (beyond.size) console.log(`asked for, and not there: ${[...beyond].join(" ")}`);
finish();
