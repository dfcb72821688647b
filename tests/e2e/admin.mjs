// The admin API against `tandem serve` with nano: settings that are kept, parking among clients, live numbers, bench; and the fields
// of docs/admin.md. Usage: node admin.mjs TANDEM
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { check, errorOf, finish, group, matches, post, same, serve, sleep, until } from "../server/serve.mjs";

const tandem = process.argv[2], root = join(import.meta.dirname, "..", "..");
const dir = mkdtempSync(join(tmpdir(), "tandem-admin-"));
process.on("exit", () => rmSync(dir, { recursive: true }));
const file = join(dir, "settings.json");
writeFileSync(file, '{"models": {"nano": {"default_max_tokens": 4000}}}');
const start = () => serve(tandem, ["--settings", file, "--set", "max_stall_ms=150"]);
let server = await start();
const call = async (method, path, body) => {
  const r = await fetch(server.url + path, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  return { status: r.status, headers: r.headers, body: await r.json() };
};
const get = (path) => call("GET", path);
const user = (content) => [{ role: "user", content }];
const client = (maxRetries) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries });
const ask = (openai, content = "What is 27 plus 58?") => openai.chat.completions.create({ model: "nano", messages: user(content), temperature: 0 });

await group("models", async () => {
  const { body } = await get("/api/models");
  same(body.data.map((x) => [x.role, x.state]), [["model", "loaded"], ["drafter", "loaded"], ["drafter", "loaded"]], "the model and its drafters");
  for (const { id, family } of body.data) same((await get(`/api/models/${encodeURIComponent(id)}`)).body.family, family, `${id} by its name`);
  same((await get("/api/models/gpt-5")).status, 404, "one that is not there");
});

await group("settings", async () => {
  const before = (await get("/api/models/nano/settings")).body.settings;
  same([before.default_max_tokens.source, before.max_stall_ms.source, before.queue_max.source], ["file", "options", "default"], "where they come from");
  const bad = await call("PUT", "/api/models/nano/settings", { queue_max: 9, dflash_max_concurrent: -1 });
  same([bad.status, bad.body.error.param], [400, "dflash_max_concurrent"], "a wrong one is named");
  same((await get("/api/models/nano/settings")).body.settings, before, "and nothing is changed");
  const good = await call("PUT", "/api/models/nano/settings", { queue_max: 9, dflash_max_concurrent: 0, kv_cap: 0.8 });
  same([good.status, good.body.settings.queue_max.value, good.body.settings.kv_cap.pending], [200, 9, true], "several at once");
  same(JSON.parse(readFileSync(file, "utf8")).models.nano, { default_max_tokens: 4000, queue_max: 9, dflash_max_concurrent: 0, kv_cap: 0.8 }, "they are in the file");
  const id = { headers: { "X-Request-Id": "after-the-change" } };
  await client(0).chat.completions.create({ model: "nano", messages: user("Hi"), temperature: 0 }, id);
  const { data } = (await get("/api/routing?request_id=after-the-change")).body;
  check(data.length >= 2 && data.every((x) => !["dflash", "tree", "mtp"].includes(x.routed_to)), `they take effect: ${JSON.stringify(data)}`);
  await server.stop();
  server = await start();
  const { settings } = (await get("/api/models/nano/settings")).body;
  same([settings.queue_max.value, settings.dflash_max_concurrent.value, settings.kv_cap.pending], [9, 0, false], "after a new start");
  same((await call("PUT", "/api/models/nano/settings", { dflash_max_concurrent: null })).body.settings.dflash_max_concurrent.value, "auto", "null is the default");
});

await group("drafters by settings", async () => {
  const other = await serve(tandem, ["--set", "dflash_draft_quant_enabled=true", "--set", "dflash_draft_quant_weight_bits=4", "--set", `mtp_draft_model=${join(root, "models/nano/target.gguf")}`]);
  const of = async (path) => (await fetch(other.url + path)).json();
  const [plain, small] = [(await get("/api/models/dflash")).body, await of("/api/models/dflash")];
  same([plain.quantisation, small.quantisation, small.state], ["Q8_0", "Q4_0", "loaded"], "nano's drafter in 4 bits");
  check(small.weight_bytes < plain.weight_bytes * 0.7, `${small.weight_bytes} bytes instead of ${plain.weight_bytes}`);
  same([small.id, small.path, small.fingerprint], [plain.id, plain.path, plain.fingerprint], "of the same bytes");
  const failed = await of("/api/models/mtp");
  same([failed.state, failed.id, failed.path], ["failed", "target.gguf", join(root, "models/nano/target.gguf")], "a drafter that is none");
  check(failed.error.includes("is not a drafter"), failed.error);
  const again = await fetch(`${other.url}/api/models/mtp/unpark`, { method: "POST" });
  same([again.status, (await again.json()).error.code], [503, "load_failed"], "it can be tried again");
  const props = await of("/props"), metrics = await (await fetch(`${other.url}/metrics`)).text();
  same(props.models.map((x) => [x.id, x.state]), [["nano", "loaded"], ["nano-dflash", "loaded"], ["target.gguf", "failed"]], "/props");
  for (const x of props.models) check(metrics.includes(`role="${x.role}",id="${x.id}",path="${x.path}",family="${x.family}",fingerprint="${x.fingerprint ?? ""}"} ${x.state === "loaded" ? 1 : 0}`), `${x.id} is not in /metrics`);
  await other.stop();
});

await group("parking", async () => {
  const text = (await ask(client(0))).choices[0].message.content, full = server.memory();
  const story = await client(0).chat.completions.create({ model: "nano", messages: user("Tell me a story."), max_tokens: 1500, stream: true, temperature: 1, seed: 1 });
  const park = call("POST", "/api/models/nano/park", {});
  let reason;
  for await (const x of story) reason = x.choices[0]?.finish_reason ?? reason;
  check(["stop", "length"].includes(reason), `a running answer ends: ${reason}`);
  same((await park).body.state, "parked", "then it is parked");
  const refused = await errorOf(ask(client(0)), "a request to a parked model");
  same([refused.status, refused.code], [503, "parked"], "a request to a parked model");
  check(Number(refused.headers.get("retry-after")) > 0, "Retry-After");
  same([(await get("/health")).body.status, (await get("/ready")).status], ["parked", 503], "it lives and is not ready");
  check(server.memory() < full - 8000, `memory: ${full} KiB before, ${server.memory()} KiB parked`);
  const wrong = await call("PUT", "/api/models/nano/settings", { queue_max: 10, kv_cap: 3 });
  same([wrong.status, wrong.body.error.param], [400, "kv_cap"], "a wrong setting while it is parked");
  const put = await call("PUT", "/api/models/nano/settings", { max_stall_ms: 99, kv_cap: 0.75 });
  same([put.status, put.body.settings.max_stall_ms.value, put.body.settings.kv_cap.pending], [200, 99, true], "settings while it is parked");
  const waiting = ask(client(5)); // the SDK waits as it is told
  await sleep(100);
  same((await call("POST", "/api/models/nano/unpark", {})).body.state, "loaded", "and loaded again");
  same((await waiting).choices[0].message.content, text, "a client that was patient");
  const set = (await get("/api/models/nano/settings")).body.settings;
  same([set.queue_max.value, set.max_stall_ms.value, set.kv_cap.value, set.kv_cap.pending], [9, 99, 0.75, false], "the settings are as they were, and as they were put");
  const cycle = async n => { for (let i = 0; i < n; i++) for (const verb of ["park", "unpark"]) same((await call("POST", `/api/models/nano/${verb}`, { grace_s: 0 })).status, 200, verb); };
  await cycle(8); // the allocator keeps some memory for each thread that has loaded a model
  const before = server.memory(), descriptors = server.descriptors();
  await cycle(20);
  check(server.memory() < before + 20000, `memory: ${before} KiB, after 20 times ${server.memory()} KiB`);
  check(server.descriptors() <= descriptors + 4, `descriptors: ${descriptors}, after 20 times ${server.descriptors()}`);
});

await group("parking a drafter", async () => {
  const asks = Array.from({ length: 6 }, (_, i) => ({ model: "nano", messages: user(`What is ${30 + i} plus ${41 + i}?`), temperature: 0 }));
  const all = () => Promise.all(asks.map(async (x) => (await client(0).chat.completions.create(x)).choices[0].message.content));
  const plain = await all();
  for (const family of ["dflash", "mtp", "dflash"]) {
    const running = [all(), all()];
    same((await call("POST", `/api/models/${family}/park`, {})).body.state, "parked", `${family} is parked`);
    running.push(all());
    same((await get(`/api/models/${family}`)).body.state, "parked", `${family} is parked`);
    same((await call("POST", `/api/models/${family}/unpark`, {})).body.state, "loaded", `${family} is open again`);
    for (const texts of await Promise.all(running)) same(texts, plain, `${family}: the text is the same`);
  }
});

await group("live numbers", async () => {
  const quit = new AbortController(), events = [];
  const r = await fetch(`${server.url}/api/stats?interval_ms=250`, { headers: { accept: "text/event-stream" }, signal: quit.signal });
  same(r.headers.get("content-type"), "text/event-stream", "a stream");
  const reading = (async () => {
    let rest = "";
    for await (const bytes of r.body) {
      const parts = (rest + Buffer.from(bytes)).split("\n\n");
      rest = parts.pop();
      events.push(...parts.map((x) => JSON.parse(x.replace(/^data: /, ""))));
    }
  })().catch(() => {});
  await until(async () => {
    await client(0).chat.completions.create({ model: "nano", messages: user("Tell me a story."), max_tokens: 1500, temperature: 0, ...{ ignore_eos: true } });
    return events.some((x) => x.requests.running === 1 && x.slots.length === 1);
  }, "a request is seen", 20000);
  await until(() => events.length > 3, "events come");
  await until(() => events.some((x) => x.rates.completion_tokens_per_s > 10), "its rate is seen");
  quit.abort();
  await reading;
  await until(async () => (await get("/api/stats")).body.http.stats_streams === 0, "who leaves is forgotten");
  const { body } = await get("/api/stats"), metrics = await server.metrics();
  same([body.tokens.completion, body.tokens.prompt], [metrics.tandem_generation_tokens_total, metrics.tandem_prompt_tokens_total], "the counts of /metrics");
});

await group("bench", async () => {
  const ask = { concurrency: [1, 4], methods: ["off", "auto", "dflash", "tree", "mtp", "ngram"], prompt_tokens: 80, output_tokens: 24, repeats: 2 };
  const { status, body } = await call("POST", "/api/bench", ask);
  same([status, body.same_text, body.complete, body.cells?.length], [200, true, true, 12], `a bench of all methods: ${JSON.stringify(body).slice(0, 200)}`);
  for (const c of body.cells) {
    same([c.answers, c.tokens, c.failed], [4 * c.concurrency, 96 * c.concurrency, 0], `${c.method} with ${c.concurrency}`);
    check(c.tokens_per_s > 0 && c.ttft_s.median > 0, `${c.method} with ${c.concurrency} has rates`);
    if (["dflash", "tree", "mtp", "ngram"].includes(c.method)) same(Object.keys(c.methods), c.drafted ? [c.method] : [], `${c.method} alone`);
    if (c.method === "off") same(c.drafted, 0, "off guesses nothing");
  }
  const long = { concurrency: [8], methods: ["off"], output_tokens: 500, requests: 64, repeats: 50 };
  const quit = new AbortController(), running = errorOf(post(server.url, "/api/bench", long, { signal: quit.signal }), "a bench whose client leaves");
  await until(async () => (await get("/api/stats")).body.requests.running > 0, "it runs");
  same((await call("POST", "/api/bench", {})).body.error?.code, "bench_running", "one at a time");
  matches((await client(0).chat.completions.create({ model: "nano", messages: user("What is 27 plus 58?"), temperature: 0 })).choices[0].message.content, /85/, "others are answered");
  quit.abort();
  await running;
  await until(async () => !(await get("/api/stats")).body.bench, "it ends when its client leaves");
});

await group("the fields of docs/admin.md", async () => {
  const page = readFileSync(join(root, "docs/admin.md"), "utf8"), shown = { P: new Set(), B: new Set() };
  const of = { P: ["/api/models/nano/park", {}], B: ["/api/bench", { prompt_tokens: 50, output_tokens: 4, requests: 1 }] };
  for (const [, field, where, example] of page.matchAll(/^\| `([a-z_]+)` \| ([PB]) \|.*?\| `(".*?)` \|.*\|$/gm)) {
    const [path, body] = of[where], r = await post(server.url, path, { ...body, ...JSON.parse(`{${example}}`) });
    same(r.status, 200, `${path} with ${example}`);
    await r.text();
    if (where === "P") await call("POST", "/api/models/nano/unpark", {});
    shown[where].add(field);
  }
  for (const [, name, where] of readFileSync(join(root, "src/server/fields.c"), "utf8").matchAll(/^ {4}\{"([a-z_.]+)",\s+FIELD_\w+,\s+FIELD_(PARK|BENCH),/gm))
    check(shown[where[0]].delete(name), `${name} (${where}) is in docs/admin.md`);
  same([...shown.P, ...shown.B], [], "docs/admin.md has no field that the server has not");
});

check(server.alive(), "the server lives");
same(await server.stop(), 0, "SIGTERM ends the server");
finish();
