// What happens to sessions, prefixes, streams and new requests when replicas are busy, killed, drained and ended, behind HAProxy
// as deploy/haproxy.cfg has it. Prints a table, which is the one of docs/replicas.md. Usage: node replicas.mjs TANDEM
import { spawn } from "node:child_process";
import { Agent, request } from "node:http";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { check, finish, matches, same, serve, sleep, until } from "../server/serve.mjs";

const tandem = process.argv[2], started = Date.now();
const CONFIG = fileURLToPath(new URL("../../deploy/haproxy.cfg", import.meta.url));
const NAMES = ["a", "b", "c"], SESSIONS = Array.from({ length: 30 }, (_, i) => `session-${i}`);
const range = (n) => Array.from({ length: n }, (_, i) => i);
const table = [];
const tell = (what, result) => table.push([what, result]);

// --- three replicas and a proxy
function freePort() {
  return new Promise((done) => {
    const s = createServer().listen(0, "127.0.0.1", () => {
      const { port } = s.address();
      s.close(() => done(port));
    });
  });
}
// One thread each, and room in the queue for all that is asked below.
const start = (name, port) => serve(tandem, ["--port", String(port), "--replica-id", name, "--threads", "1", "--set", "queue_max=400"]);

const front = await freePort(), ports = {}, replica = {};
for (const n of NAMES) ports[n] = await freePort();
for (const n of NAMES) replica[n] = await start(n, ports[n]);
const proxy = spawn("haproxy", ["-db", "-f", CONFIG], {
  env: { ...process.env, TANDEM_FRONT: `127.0.0.1:${front}`, ...Object.fromEntries(NAMES.map((n, i) => [`TANDEM_${i + 1}`, `127.0.0.1:${ports[n]}`])) },
  stdio: ["ignore", "pipe", "pipe"],
});
let proxyLog = "", proxyEnded = false;
proxy.stdout.on("data", (d) => (proxyLog += d));
proxy.stderr.on("data", (d) => (proxyLog += d));
proxy.on("close", () => (proxyEnded = true));
process.on("exit", () => proxy.kill("SIGKILL"));

// --- requests
const agent = new Agent({ keepAlive: true, maxSockets: 400 });
const SYSTEM = "You are a helper with a long list of rules. ".repeat(60); // over 2 KB

// {status, replica, text, ended}; ended: the reply came to its end. onData may leave by calling its argument.
function send(path, { headers = {}, body, onData, port = front, method = "POST" } = {}) {
  return new Promise((done) => {
    const bytes = body && Buffer.from(JSON.stringify(body));
    const out = { status: 0, replica: undefined, text: "", ended: false };
    const q = request({ host: "127.0.0.1", port, path, method, agent, headers: { ...(bytes && { "content-type": "application/json", "content-length": bytes.length }), ...headers } }, (r) => {
      out.status = r.statusCode;
      out.replica = r.headers["x-replica-id"];
      out.id = r.headers["x-request-id"];
      r.setEncoding("utf8");
      r.on("data", (d) => {
        out.text += d;
        onData?.(() => q.destroy(), out);
      });
      r.on("end", () => (out.ended = r.complete));
      r.on("close", () => done(out));
      r.on("error", () => {});
    });
    q.on("error", (e) => {
      out.error = String(e);
      done(out);
    });
    q.end(bytes);
  });
}
const chat = (content, more = {}) => ({ messages: [{ role: "user", content }], max_tokens: 1, temperature: 0, ...more });
const ask = (session, more = {}, extra = {}) => send("/v1/chat/completions", { headers: session ? { "x-session-id": session } : {}, body: chat("Hi", more), ...extra });
// A stream of so many tokens, whatever they are.
const stream = (session, tokens, extra) => ask(session, { stream: true, ignore_eos: true, max_tokens: tokens, speculative: "off" }, extra);
const isWhole = (r) => r.status === 200 && r.ended && (!r.text.startsWith("data:") || r.text.includes("data: [DONE]"));
const failures = (all) => all.filter((r) => !isWhole(r));
const noFailure = (all, what) => same(failures(all).slice(0, 2).map((r) => [r.status, r.error, r.text.slice(-300)]), [], `${what}: no request fails`);
const counts = (all) => NAMES.map((n) => all.filter((r) => r.replica === n).length);
// Pairs [key, all that it got]: keys that one replica alone has answered.
const stayed = (groups) => groups.filter(([, all]) => new Set(all.map((r) => r.replica)).size === 1).length;

async function inTurn(keys, times, one) {
  const got = new Map(keys.map((k) => [k, []]));
  for (const i of range(times)) for (const k of keys) got.get(k).push(await one(k, i));
  return [...got];
}
async function atOnce(keys, times, one) {
  return Promise.all(keys.map(async (k) => [k, await Promise.all(range(times).map((i) => one(k, i)))]));
}
const flat = (groups) => groups.flatMap(([, all]) => all);
const homes = async () => new Map((await inTurn(SESSIONS, 1, (s) => ask(s))).map(([s, [r]]) => [s, r.replica]));
// Waits until the proxy has seen who is there: sessions are at home, but those of `gone`, if any, elsewhere; returns how many are.
async function settle(gone, what) {
  let away = 0;
  await until(async () => {
    const now = [...(await homes())];
    away = now.filter(([s, r]) => r !== home.get(s)).length;
    return now.every(([s, r]) => (home.get(s) === gone) === (r !== home.get(s)));
  }, what, 20000);
  return away;
}
// New requests, so many at once, until told to end.
function flow(width) {
  const got = [];
  let go = true, i = 0;
  const work = Promise.all(range(width).map(async () => {
    while (go) got.push(await ask(SESSIONS[i++ % SESSIONS.length]));
  }));
  return { got, end: () => ((go = false), work.then(() => got)) };
}

// Streams of so many tokens that have all begun; running: how many have not ended.
async function run(sessions, tokens) {
  const begun = new Set();
  let ended = 0;
  const streams = sessions.map((s, i) => stream(s, tokens, { onData: () => begun.add(i) }).finally(() => ended++));
  await until(() => begun.size === sessions.length, "streams begin", 60000);
  return { streams, running: () => sessions.length - ended };
}

// --- all three are there
await until(async () => proxyEnded || (await send("/health", { method: "GET" })).status === 200, "the proxy starts", 20000);
check(!proxyEnded, `haproxy runs: ${proxyLog.slice(-500)}`);
const home = await homes();
same([...new Set(home.values())].sort(), NAMES, "all replicas are found");

// --- sessions
{
  const calm = await inTurn(SESSIONS, 4, (s) => ask(s));
  noFailure(flat(calm), "sessions in turn");
  same(calm.filter(([s, all]) => all.every((r) => r.replica === home.get(s))).length, SESSIONS.length, "sessions stay where they are");
  tell("30 sessions × 4 requests, one after another", `${stayed(calm)} of 30 never left their replica`);
  for (const field of ["session-id", "x-claude-code-session-id"]) {
    const other = await inTurn(SESSIONS.slice(0, 8), 1, (s) => send("/v1/chat/completions", { headers: { [field]: s }, body: chat("Hi") }));
    same(other.map(([, [r]]) => r.replica), SESSIONS.slice(0, 8).map((s) => home.get(s)), `${field} is the same key`);
  }

  const burst = await atOnce(SESSIONS, 10, (s) => ask(s));
  noFailure(flat(burst), "a burst of sessions");
  const atHome = flat(burst.map(([s, all]) => [s, all.filter((r) => r.replica === home.get(s))])).length;
  check(atHome >= 150, `sessions in a burst: ${atHome} of 300 requests at home`);
  tell("30 sessions × 10 requests in a 300-way burst", `${stayed(burst)} of 30 never left their replica, ${atHome} of 300 requests were at home; the others spilled by the bound of 150 % (intended)`);
}

// --- prefixes of bodies
{
  const prompts = range(20).map((i) => `Application ${i}. ${SYSTEM}`);
  const one = (system, i) => send("/v1/chat/completions", { body: { messages: [{ role: "system", content: system }, { role: "user", content: `What is ${i} plus 5?` }], max_tokens: 1 } });
  const calm = await inTurn(prompts, 3, one);
  noFailure(flat(calm), "prefixes");
  same(stayed(calm), prompts.length, "a prefix has one replica");
  const usage = calm.map(([, all]) => all.slice(1).map((r) => JSON.parse(r.text).usage)).flat();
  const cached = usage.reduce((n, u) => n + u.prompt_tokens_details.cached_tokens, 0), all = usage.reduce((n, u) => n + u.prompt_tokens, 0);
  check(cached > all * 0.9, `prefixes are found in the cache: ${cached} of ${all} tokens`);
  check(new Set(calm.map(([, [r]]) => r.replica)).size === 3, "prefixes are spread");
  tell("20 system prompts of 2.7 KB × 3 questions, no session", `${stayed(calm)} of 20 groups on one replica; ${((100 * cached) / all).toFixed(0)} % of the later prompts' tokens were cached`);
}

// --- one key that everybody has
{
  const all = await Promise.all(range(90).map(() => stream("hot", 100)));
  noFailure(all, "a hot key");
  const n = counts(all).sort((x, y) => y - x);
  check(n[0] <= 60 && n[1] > 0, `a hot key spreads: ${n}`);
  tell("90 streams at once with the same key", `${n.join("/")}: no hot spot`);
}

// --- clients that leave
const sum = async (names, metric) => (await Promise.all(names.map((n) => replica[n].metrics()))).reduce((t, m) => t + (m[metric] ?? 0), 0);
const ABORTED = 'tandem_request_success_total{finished_reason="abort"}', RUNNING = "tandem_num_requests_running";
{
  const before = await sum(NAMES, ABORTED);
  await Promise.all(range(20).map((i) => stream(SESSIONS[i], 7000, { onData: (leave) => leave() })));
  await until(async () => (await sum(NAMES, RUNNING)) === 0, "answers of clients that left are ended", 20000);
  const seen = (await sum(NAMES, ABORTED)) - before;
  same(seen, 20, "clients that left are seen");
  tell("20 clients leave in mid-stream", `${seen} of 20 reached the replicas`);
}

// --- a replica is killed
{
  const { streams, running } = await run(range(60).map((i) => SESSIONS[i % 30]), 1500), victim = home.get(SESSIONS[0]);
  same(running(), 60, "all streams run when one replica is killed");
  await replica[victim].stop("SIGKILL");
  const after = flow(8);
  await until(() => after.got.length >= 2000, "new requests are answered", 40000);
  const asked = await after.end(), all = await Promise.all(streams);
  noFailure(asked, "after the kill");
  const broken = failures(all), its = all.filter((r) => r.replica === victim);
  check(its.length > 0 && its.length < 60, `streams were spread: ${counts(all)}`);
  same(broken.map((r) => r.replica), its.map(() => victim), "exactly the streams of the killed replica break");
  const moved = await settle(victim, "its sessions move, no other does");
  tell("`kill -9` of one replica with 60 live streams", `exactly its ${broken.length} streams broke; then ${failures(asked).length} of ${asked.length} new requests failed; ${moved} of 30 sessions moved, all of them its own`);

  replica[victim] = await start(victim, ports[victim]);
  await settle(undefined, "its sessions come back");
  tell("it is started again", "its sessions, and only they, return");
}

// --- a replica is drained
const control = (name, method) => send("/api/drain", { port: ports[name], method });
{
  for (const path of ["/api/drain", "/v1/api/drain", "/%61pi/drain", "/v1/%61%70i/drain", "/%73lots"]) {
    const r = await send(path, {});
    same([r.status, JSON.parse(r.text).error.code], [404, "not_found"], `the proxy passes nothing of the operator's on: ${path}`);
  }
  const name = home.get(SESSIONS[1]), mine = SESSIONS.filter((s) => home.get(s) === name);
  const before = flow(4), { streams } = await run(mine.slice(0, 6), 600);
  const start = Date.now();
  same(JSON.parse((await control(name, "POST")).text).draining, true, "the drain begins");
  same((await send("/health", { port: ports[name], method: "GET" })).status, 503, "/health is a 503");
  await until(async () => JSON.parse((await control(name, "GET")).text).running === 0, "it is empty", 30000);
  const empty = (Date.now() - start) / 1000;
  await until(() => before.got.slice(-50).every((r) => r.replica !== name), "the proxy asks others", 20000);
  const asked = await before.end();
  noFailure(asked, "while it drains");
  noFailure(await Promise.all(streams), "streams of a drained replica");
  await settle(name, "its sessions move, no other does");
  check(replica[name].alive(), "it stays");
  await control(name, "DELETE");
  await settle(undefined, "it is taken back");
  tell("`POST /api/drain` with its streams running", `empty within ${empty.toFixed(1)} s, ${failures(asked).length} of ${asked.length} requests around it failed; \`DELETE\` takes it back, its sessions return`);
}

// --- two replicas are parked
{
  const parked = NAMES.slice(1), steer = (name, what) => send(`/api/models/nano/${what}`, { port: ports[name], body: {} });
  for (const name of parked) same((await steer(name, "park")).status, 200, `${name} is parked`);
  await until(async () => (await Promise.all(SESSIONS.map((s) => ask(s)))).every((r) => r.status === 200 && r.replica === NAMES[0]), "the third has all of them", 20000);
  for (const name of parked) same((await steer(name, "unpark")).status, 200, `${name} is there again`);
  await settle(undefined, "the sessions of parked replicas come back");
  tell("two replicas are parked, then not", "the third answers all 30 sessions; then they return");
}

// --- a replica ends
{
  const name = home.get(SESSIONS[2]), before = flow(4);
  const { streams } = await run(SESSIONS.filter((s) => home.get(s) === name).slice(0, 4), 300);
  same(await replica[name].stop(), 0, "SIGTERM ends a replica");
  await sleep(1500); // the proxy notices
  const asked = await before.end();
  noFailure(await Promise.all(streams), "streams of a replica that ends");
  noFailure(asked, "while a replica ends");
  tell("SIGTERM of one replica with its streams running", `0 streams broke, ${failures(asked).length} of ${asked.length} requests around it failed`);
  const id = (await ask(SESSIONS[0], {}, { headers: { "x-session-id": SESSIONS[0], "x-request-id": "mine-7" } })).id;
  same(id, "mine-7", "a request's id comes back through the proxy");
  matches((await ask(SESSIONS[0])).id, /^req_[0-9a-f-]{36}$/, "the proxy gives a request an id");
  check(NAMES.some((n) => replica[n].log().includes("id=mine-7 ")), "it is in a replica's log");
}

// --- and nobody is left
{
  const left = NAMES.filter((n) => replica[n].alive());
  await Promise.all(left.map((n) => replica[n].stop()));
  await until(async () => (await ask("x")).status === 503, "the proxy notices", 20000);
  const none = await ask("x");
  matches(none.text, /"message":"No server takes requests now/, "the proxy's own error reads as ours");
}

console.log("| check | result |\n| --- | --- |");
for (const [what, result] of table) console.log(`| ${what} | ${result} |`);
console.log(`${((Date.now() - started) / 1000).toFixed(0)} s`);
finish();
