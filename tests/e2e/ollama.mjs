// Ollama's client from npm, its version as in tests/package.json, against `tandem serve` with nano, or the model that
// TANDEM_MODEL names. Usage: node ollama.mjs TANDEM
import OpenAI from "openai";
import { Ollama } from "ollama";
import { check, CLEVER, errorOf, finish, group, matches, MODEL, post, same, serve, sleep, talk, TOOLS, until } from "../server/serve.mjs";

const tandem = process.argv[2];
const server = await serve(tandem);
const clientOf = (s, more) => new Ollama({ host: s.url, ...more });
const client = clientOf(server), openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none" });
const model = MODEL, family = CLEVER ? "gemma4" : "qwen35", user = (content) => [{ role: "user", content }];
const tools = [TOOLS.get_weather, TOOLS.get_time, TOOLS.set_timer];
const greedy = { temperature: 0 }, plain = { model, think: false, options: greedy };

// --- one answer as one object, and as the lines of its stream
const COUNTS = ["total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"];
function checkLast(r, what) {
  for (const key of COUNTS) check(Number.isSafeInteger(r[key]) && r[key] > 0, `${what}: ${key} is ${r[key]}`);
  check(r.total_duration >= r.load_duration + r.prompt_eval_duration + r.eval_duration, `${what}: the total is not less than its parts: ${JSON.stringify(r)}`);
  check(r.total_duration < 600e9, `${what}: durations are nanoseconds: ${r.total_duration}`);
}
const withoutIds = (calls) => calls?.map(({ id, ...rest }) => rest);
const bare = ({ message: m, ...r }) => [r.model, r.done_reason, r.prompt_eval_count, r.eval_count, m?.role ?? "", m?.content ?? r.response, (m ? m.thinking : r.thinking) ?? "", withoutIds(m?.tool_calls) ?? []];

async function joined(stream, what) {
  let out, last;
  for await (const r of stream) {
    check(!last, `${what}: nothing comes after the last line`);
    matches(r.created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/, `${what}: created_at`);
    if (r.done) last = r;
    else check(!COUNTS.some((key) => key in r), `${what}: counts are on the last line alone`);
    const m = r.message, text = m ? "content" : "response", part = m ?? r;
    same([typeof part[text], m?.role ?? "assistant"], ["string", "assistant"], `${what}: every line has a text`);
    if (!out) out = m ? { message: { role: "assistant", content: "" } } : { response: "" };
    const to = out.message ?? out;
    to[text] += part[text];
    check(!(part.thinking && to[text]), `${what}: thoughts come before the text`);
    if (part.thinking) to.thinking = (to.thinking ?? "") + part.thinking;
    if (part.tool_calls) to.tool_calls = [...(to.tool_calls ?? []), ...part.tool_calls];
    if (r.logprobs) out.logprobs = [...(out.logprobs ?? []), ...r.logprobs];
  }
  check(last, `${what}: there is a last line`);
  checkLast(last, what);
  return { ...last, ...out };
}
async function streamEqualsWhole(what, request, kind = "chat") {
  const ask = { ...plain, ...request }, whole = await client[kind]({ ...ask, stream: false });
  same(bare(await joined(await client[kind]({ ...ask, stream: true }), what)), bare(whole), `${what}: the stream is the whole`);
  checkLast(whole, what);
  return whole;
}

await group("discovery", async () => {
  matches((await client.version()).version, /^\d+\.\d+\.\d+$/, "the version is three integers");
  same((await fetch(`${server.url}/api/version`)).headers.get("x-tandem-version"), (await (await fetch(`${server.url}/version`)).json()).version, "the server's own version");
  const { models } = await client.list();
  same(models.map((m) => [m.name, m.model, m.details.family, m.details.format, m.capabilities]), [[`${model}:latest`, `${model}:latest`, family, "gguf", ["completion", "tools", "thinking"]]], "the list");
  matches(models[0].digest, /^[0-9a-f]{64}$/, "a digest");
  check(models[0].size > 1e6 && Date.parse(models[0].modified_at) > 0, `size and date: ${JSON.stringify(models[0])}`);
  const ps = (await client.ps()).models[0];
  same([ps.name, ps.model, ps.context_length, ps.size_vram], [`${model}:latest`, `${model}:latest`, 8192, 0], "what is loaded");
  check(Date.parse(ps.expires_at) > Date.now() + 3e10, `it stays: ${ps.expires_at}`);
  for (const body of [{ model }, { model: `${model}:latest` }, { name: model.toUpperCase() }]) {
    const r = await (await post(server.url, "/api/show", body)).json();
    same([r.model_info["general.architecture"], r.model_info[`${family}.context_length`], r.license, r.modelfile], [family, 8192, "", ""], `show ${JSON.stringify(body)}`);
    check((/tools/i.test(r.template) || !CLEVER) && !/\.Suffix/.test(r.template), "the template has tools and no fill-in");
    check(r.parameters.split("\n").every((l) => /^\w+ ("[^"]*"|\S+)$/.test(l)), `parameters: ${r.parameters}`);
  }
  same((await client.show({ model })).details, models[0].details, "show's details are the list's");
  for (const path of ["/api/version", "/api/tags", "/"]) same((await fetch(server.url + path, { method: "HEAD" })).status, 200, `HEAD ${path}`);
});

await group("chat", async () => {
  const sum = await streamEqualsWhole("a sum", { messages: user("What is 27 plus 58?") });
  matches(sum.message.content, /85/, "27 plus 58");
  same([sum.done_reason, sum.model], ["stop", model], "a sum ends by itself");
  await streamEqualsWhole("a name with its tag", { model: `${model}:latest`, messages: user("Hi") });
  await streamEqualsWhole("a system text", { messages: [{ role: "System", content: "Be brief." }, ...user("Who are you?")] });
  await streamEqualsWhole("Chinese", { messages: user("你好") });
  await streamEqualsWhole("bytes that are no text", { messages: user("Hi"), options: { temperature: 30, seed: 3, num_predict: 200 } });
  const cut = await streamEqualsWhole("cut short", { messages: user("Tell me a story."), options: { ...greedy, num_predict: 5 } });
  same([cut.done_reason, cut.eval_count], ["length", 5], "cut short");
  const { message: { content: all } } = sum;
  for (const stop of [["8"], ["zebra", "="], "tens"]) {
    const r = await streamEqualsWhole(`stop ${stop}`, { messages: user("What is 27 plus 58?"), options: { ...greedy, stop } }), first = [stop].flat().filter((s) => all.includes(s))[0];
    same([r.message.content, r.done_reason], [all.slice(0, all.indexOf(first)), "stop"], `stop ${stop}`);
  }
  // the text is that of /v1/chat/completions, byte for byte
  for (const [options, theirs] of [[greedy, greedy], [{ temperature: 1, seed: 7, top_k: 20, top_p: 0.9, min_p: 0.01, repeat_penalty: 1.1, num_predict: 60 }, { temperature: 1, seed: 7, top_k: 20, top_p: 0.9, min_p: 0.01, repeat_penalty: 1.1, max_tokens: 60 }]])
    for (const think of [false, true]) {
      const messages = [{ role: "system", content: "Be brief." }, ...user("Tom has 12 apples and buys 7 more. How many apples does Tom have?")];
      const r = await streamEqualsWhole("as /v1", { messages, options, think });
      const o = (await openai.chat.completions.create({ model, messages, ...theirs, enable_thinking: think })).choices[0].message;
      same([r.message.content, r.message.thinking ?? ""], [o.content, o.reasoning_content ?? ""], `the text is that of /v1/chat/completions: ${JSON.stringify([options, think])}`);
    }
});

await group("an answer that was begun", async () => {
  const messages = [...user("What is 27 plus 58?"), { role: "assistant", content: "27 + 58\nones: 7" }];
  const r = await streamEqualsWhole("begun", { messages });
  same(messages[1].content + r.message.content, (await client.chat({ ...plain, messages: messages.slice(0, 1) })).message.content, "it goes on where it was");
});

await group("names", async () => {
  const named = await serve(tandem, ["--alias", "one", "--alias", "two:7b"]);
  same((await clientOf(named).list()).models.map((m) => m.name), ["one:latest", "two:7b"], "all names are listed");
  for (const name of ["one", "One:latest", "two:7b"]) same((await clientOf(named).chat({ ...plain, model: name, messages: user("Hi") })).model, name, `the model ${name}`);
  same((await errorOf(clientOf(named).chat({ ...plain, model: "two", messages: user("Hi") }), "another tag")).status_code, 404, "another tag");
  await named.stop();
});

await group("thinking", async () => {
  const messages = user("Tom has 12 apples and buys 7 more. How many apples does Tom have?");
  const think = await streamEqualsWhole("think", { messages, think: true });
  matches(think.message.thinking, /12/, "there is a thought");
  matches(think.message.content, /19/, "there is an answer");
  for (const level of [undefined, "low", "medium", "high", "max"]) same(bare(await streamEqualsWhole(`think ${level}`, { messages, think: level })), bare(think), `think ${level} is on`);
  check(!("thinking" in (await streamEqualsWhole("not thinking", { messages })).message), "think false");
  const told = await streamEqualsWhole("a thought sent back", { messages: [...messages, think.message, ...user("And 4 more?")], think: true });
  check(told.eval_count > 0, "a thought sent back");
  const generated = await streamEqualsWhole("generate thinks", { prompt: messages[0].content, think: true }, "generate");
  same([generated.thinking, generated.response], [think.message.thinking, think.message.content], "generate thinks as chat does");
});

await group("tools", async () => {
  const ask = { tools, messages: user("What is the weather in Paris?") };
  const one = await streamEqualsWhole("a call", ask), [call] = one.message.tool_calls;
  same([one.done_reason, one.message.content, call.function], ["stop", "", { index: 0, name: CLEVER ? "get_weather" : call.function.name, arguments: { city: "Paris" } }], "a call");
  matches(call.id, /^call_\w{24}$/, "a call has an id");
  const content = '{"sky":"sunny","temp":21}', answers = [{ tool_name: "get_weather" }, { tool_call_id: call.id }, {}, { tool_name: "get_weather", tool_call_id: call.id }];
  const told = [];
  for (const more of answers) told.push((await streamEqualsWhole("its answer", { ...ask, messages: [...ask.messages, one.message, { role: "tool", content, ...more }] })).message.content);
  same(told, answers.map(() => (CLEVER ? "It is sunny in Paris at 21 degrees." : told[0])), "its answer, by name, by id and by order");
  const noIds = { ...one.message, tool_calls: withoutIds(one.message.tool_calls) };
  same((await streamEqualsWhole("a call without an id", { ...ask, messages: [...ask.messages, noIds, { role: "tool", content }] })).message.content, told[0], "a call without an id");
  const two = await streamEqualsWhole("two calls", { ...ask, messages: user("What is the weather in Paris and in Oslo?") });
  same(two.message.tool_calls.map((c) => c.function), ["Paris", "Oslo"].map((city, index) => ({ index, name: one.message.tool_calls[0].function.name, arguments: { city } })), "two calls");
  let line = 0;
  for await (const r of await client.chat({ ...plain, ...ask, stream: true })) if (r.message.tool_calls) line++, same([r.message.content, r.done], ["", false], "a call has a line of its own");
  same(line, 1, "a call comes whole");
});

await group("structured output", async () => {
  const schema = { type: "object", properties: { sum: { type: "integer" }, sure: { type: "boolean" } }, required: ["sum", "sure"], additionalProperties: false };
  const messages = user("What is 27 plus 58?");
  for (const think of [false, true]) {
    const r = await streamEqualsWhole("a schema", { messages, format: schema, think }), { sum, sure } = JSON.parse(r.message.content);
    check(Number.isInteger(sum) && typeof sure === "boolean", `a schema: ${r.message.content}`);
    same("thinking" in r.message, think, "thoughts are not held to the schema");
  }
  check(typeof JSON.parse((await streamEqualsWhole("any object", { messages, format: "json" })).message.content) === "object", "any object");
  check(JSON.parse((await streamEqualsWhole("generate with a schema", { prompt: "What is 27 plus 58?", format: schema }, "generate")).response), "generate with a schema");
  same(bare(await streamEqualsWhole("an empty format", { messages, format: "" })), bare(await streamEqualsWhole("no format", { messages })), "an empty format is none");
  const call = await streamEqualsWhole("a call or a value", { tools, messages: user("What is the weather in Paris?"), format: schema });
  check(call.message.tool_calls?.length || JSON.parse(call.message.content), "a call or a value");
  for (const format of ["yaml", 7, { type: "object", unevaluatedProperties: { type: "string" }, properties: { a: { $dynamicRef: "#x" } } }]) matches((await errorOf(client.chat({ ...plain, messages, format }), "a format")).message, /format/, `a format of ${JSON.stringify(format)}`);
});

await group("generate", async () => {
  const chat = await streamEqualsWhole("a chat", { messages: [{ role: "system", content: "Be brief." }, ...user("What is 27 plus 58?")] });
  const text = await streamEqualsWhole("a prompt", { system: "Be brief.", prompt: "What is 27 plus 58?" }, "generate");
  same([text.response, text.prompt_eval_count], [chat.message.content, chat.prompt_eval_count], "generate is a chat of one message");
  const question = "What is 27 plus 58?", gemma = `<bos><|turn>user\n${question}<turn|>\n<|turn>model\n<|channel>thought\n<channel|>`;
  const prompt = CLEVER ? gemma : `<|im_start|>user\n${question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n`;
  const own = await streamEqualsWhole("as chat", { prompt: "What is 27 plus 58?" }, "generate"), raw = await streamEqualsWhole("raw", { raw: true, prompt }, "generate");
  same([raw.response, raw.prompt_eval_count], [own.response, own.prompt_eval_count], "raw: the client writes the template");
  if (CLEVER) same((await streamEqualsWhole("raw without bos", { raw: true, prompt: prompt.slice(5) }, "generate")).prompt_eval_count, own.prompt_eval_count, "a sequence begins with its token");
  for (const more of [{ raw: true, prompt: "x", system: "y" }, { raw: true, prompt: "x", template: "y" }, { raw: true, prompt: "x", context: [1] }])
    matches((await errorOf(client.generate({ ...plain, ...more }), "raw with more")).message, /raw mode does not support/, `raw with ${Object.keys(more)[2]}`);
  for (const [more, word] of [[{ suffix: "x" }, /does not support insert/], [{ template: "{{ .Prompt }}" }, /template/], [{ context: [1, 2] }, /context/], [{ images: ["aGk="] }, /text only/]])
    matches((await errorOf(client.generate({ ...plain, prompt: "Hi", ...more }), "unsupported")).message, word, `unsupported: ${JSON.stringify(more)}`);
  const same2 = { prompt: "Tell me a story.", options: { temperature: 1, seed: 11, num_predict: 40 } };
  same((await streamEqualsWhole("a seed", same2, "generate")).response, (await client.generate({ ...plain, ...same2 })).response, "equal requests give equal texts");
});

await group("loading", async () => {
  const told = async (path, body) => { const r = await post(server.url, path, body); return [r.status, r.headers.get("content-type"), await r.json()]; };
  for (const [body, reason] of [[{ model }, "load"], [{ model, messages: [], stream: true }, "load"], [{ model, messages: [], keep_alive: 0 }, "unload"], [{ model, keep_alive: "0s" }, "unload"], [{ model, keep_alive: "1h30m" }, "load"], [{ model, keep_alive: -1 }, "load"]]) {
    const [status, type, r] = await told("/api/chat", body);
    same([status, type, r.message, r.done, r.done_reason], [200, "application/json", { role: "assistant", content: "" }, true, reason], `chat ${JSON.stringify(body)}`);
  }
  for (const [body, reason] of [[{ model }, "load"], [{ model, prompt: "", keep_alive: 0 }, "unload"]]) {
    const [, , r] = await told("/api/generate", body);
    same([r.response, r.done, r.done_reason], ["", true, reason], `generate ${JSON.stringify(body)}`);
  }
  same((await told("/api/chat", { model, keep_alive: "soon" }))[2].error, 'time: invalid duration "soon"', "a bad keep_alive");
  same((await client.ps()).models.length, 1, "the model stays loaded");
});

await group("options", async () => {
  const messages = user("Hi"), of = (options, more) => client.chat({ ...plain, messages, options, ...more });
  for (const [options, word] of [[{ temperature: "hot" }, 'option "temperature" must be of type float32'], [{ num_predict: "x" }, 'option "num_predict" must be of type integer'], [{ use_mmap: 1 }, 'option "use_mmap" must be of type boolean'], [{ stop: 7 }, 'option "stop" must be of type array']]) {
    const e = await errorOf(of(options), "a wrong type");
    same([e.status_code, e.error], [400, word], JSON.stringify(options));
  }
  const hi = bare(await of(greedy));
  same(bare(await of({ ...greedy, top_k: 40.0, num_ctx: 4096, num_gpu: 99, num_thread: 8, mirostat: 0, repeat_last_n: 64, numa: false, nonsense: [1], seed: -1, use_mmap: null })), hi, "options without effect");
  same(bare(await of({ ...greedy, repeat_penalty: 1.9, repeat_last_n: 0 })), hi, "repeat_last_n 0 switches repeat_penalty off");
  same(bare(await of({ ...greedy, draft_num_predict: 0 })), hi, "speculation off changes nothing");
  const small = await of({ ...greedy, num_ctx: 30, num_predict: -1 }, { messages: user("Tell me a long story.") });
  check(small.prompt_eval_count + small.eval_count <= 31 && small.done_reason === "length", `num_ctx limits an answer: ${JSON.stringify(small)}`);
  const long = await errorOf(of({ ...greedy, num_ctx: 8 }), "a prompt over num_ctx");
  same([long.status_code, /maximum context length is 8 tokens/.test(long.error)], [400, true], `num_ctx limits a prompt: ${long}`);
  const r = await post(server.url, "/api/chat", { ...plain, stream: false, messages, options: { ...greedy, mirostat: 2, tfs_z: 0.5, num_gpu: 1 } });
  matches(r.headers.get("x-tandem-warning"), /mirostat.*tfs_z|tfs_z.*mirostat/, "options that would change the text and do not are named");
  const probs = await client.chat({ ...plain, messages, logprobs: true, top_logprobs: 2 }), streamed = await joined(await client.chat({ ...plain, messages, logprobs: true, top_logprobs: 2, stream: true }), "log-probabilities");
  same([probs.logprobs.map((p) => p.token).join(""), probs.logprobs.every((p) => p.top_logprobs.length === 2 && p.logprob <= 0)], [probs.message.content, true], "log-probabilities");
  same(streamed.logprobs, probs.logprobs, "log-probabilities of a stream");
});

await group("long conversations", async () => {
  const messages = [{ role: "system", content: "Be brief." }];
  for (let i = 0; i < 30; i++) messages.push(...user(`My number is ${i}. `.repeat(40)), { role: "assistant", content: "Good." });
  messages.push(...user("What is 27 plus 58?"));
  const e = await errorOf(client.chat({ ...plain, messages }), "too long");
  same([e.status_code, /maximum context length is 8192 tokens.*resulted in \d+ tokens/.test(e.error)], [400, true], `a conversation over the context: ${e}`);
  const r = await client.chat({ ...plain, messages, truncate: true });
  check(r.prompt_eval_count < 8192 && r.prompt_eval_count > 6000, `truncate drops as few turns as it can: ${r.prompt_eval_count}`);
  same((await errorOf(client.chat({ ...plain, messages: user("word ".repeat(20000)), truncate: true }), "one turn")).status_code, 400, "the last turn stays");
});

await group("errors", async () => {
  const at = async (path, body, options) => { const r = await (options ? fetch(server.url + path, options) : post(server.url, path, body)); return [r.status, r.headers.get("content-type"), await r.json()]; };
  for (const [path, body, status, word] of [
    ["/api/chat", { model: "other", messages: user("Hi") }, 404, /^model 'other' not found$/], ["/api/chat", { messages: user("Hi") }, 400, /^model is required$/], ["/api/chat", "", 400, /^missing request body$/],
    ["/api/generate", { model: `${model}:7b`, prompt: "Hi" }, 404, new RegExp(`^model '${model}:7b' not found$`)], ["/api/chat", "{", 400, /JSON/], ["/api/chat", { model, messages: "Hi" }, 400, /messages/], ["/api/chat", { model, messages: [{ role: "user", content: 7 }] }, 400, /messages\[0\].content/],
    ["/api/chat", { model, messages: [{ role: "robot", content: "" }] }, 400, /messages\[0\].role/], ["/api/chat", { model, messages: [{ ...user("What is this?")[0], images: ["aGk="] }] }, 400, /text only/], ["/api/chat", { model, messages: user("Hi"), think: "much" }, 400, /think/],
    ["/api/chat", { model, messages: user("Hi"), top_logprobs: 21 }, 400, /^top_logprobs must be between 0 and 20$/], ["/api/chat", { model, messages: user("Hi"), stream: "yes" }, 400, /stream/], ["/api/chat", { model, messages: user("Hi"), tools: "x" }, 400, /tools/],
    ["/api/show", { model: "other" }, 404, /not found/], ["/api/show", {}, 400, /^model is required$/], ["/api/show", "", 400, /^missing request body$/], ["/api/pull", { model: "llama3.2" }, 404, /tandem serve/], ["/api/pull", {}, 400, /^model is required$/], ["/api/pull", { model: 5 }, 400, /'model'/], ["/api/embed", { model, input: "Hi" }, 501, /embeddings/], ["/api/embeddings", { model, prompt: "Hi" }, 501, /embeddings/],
    ["/api/create", { model: "x" }, 501, /create/], ["/api/copy", {}, 501, /copy/], ["/api/push", {}, 501, /push/], ["/api/nothing", {}, 404, /path/], ["/api/tags", {}, 405, /method/i],
  ]) {
    const [got, type, r] = await at(path, body);
    same([got, type, Object.keys(r), typeof r.error], [status, "application/json", ["error"], "string"], `${path} ${JSON.stringify(body).slice(0, 80)}`);
    matches(r.error, word, `${path} ${JSON.stringify(body).slice(0, 80)}`);
  }
  const big = await talk(server.port, "POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n\r\n");
  matches(big.text, /^HTTP\/1.1 413 [^]*\{"error":"[^"{]+"\}$/, "a body that is too large");
  same((await client.pull({ model })).status, "success", "a model that is here");
  let lines = 0;
  for await (const r of await client.pull({ model, stream: true })) lines++, same(r, { status: "success" }, "a pull's line");
  same(lines, 1, "a pull's lines");
  for (const [what, request] of [["delete", { model }], ["copy", { source: model, destination: "x" }], ["push", { model }], ["create", { model: "x", from: model }], ["embed", { model, input: "Hi" }], ["embeddings", { model, prompt: "Hi" }]])
    same((await errorOf(client[what](request), what)).status_code, 501, `${what} is refused`);
});

await group("lines", async () => {
  const odd = "one\u0085two\u2028three\u2029four";
  const schema = { type: "object", properties: { text: { const: odd } }, required: ["text"], additionalProperties: false };
  const text = await (await post(server.url, "/api/chat", { ...plain, messages: user("Hi"), format: schema })).text(), lines = text.split(/[\n\u0085\u2028\u2029]/);
  same(lines.pop(), "", "the last line ends");
  same(JSON.parse(lines.map((l) => JSON.parse(l).message.content).join("")), { text: odd }, "nothing but a newline ends a line");
  const r = await post(server.url, "/api/chat", { ...plain, messages: user("Hi") });
  same(r.headers.get("content-type"), "application/x-ndjson", "a stream unless it says otherwise");
  await r.text();
});

await group("keys", async () => {
  const locked = await serve(tandem, ["--api-key", "secret"]), ask = { ...plain, messages: user("Hi") };
  const e = await errorOf(clientOf(locked).chat(ask), "no key");
  same([e.status_code, /API key/.test(e.error)], [401, true], `no key: ${e}`);
  same((await clientOf(locked, { headers: { Authorization: "Bearer secret" } }).chat(ask)).done, true, "the right key");
  await locked.stop();
  const without = await serve(tandem, ["--no-ollama"]);
  same([(await fetch(`${without.url}/api/tags`)).status, (await fetch(`${without.url}/api/models`)).status], [404, 200], "--no-ollama");
  await without.stop();
});

// nano-qwen ends its text too soon for this.
if (CLEVER) await group("busy, abort, failure", async () => {
  const small = await serve(tandem, ["--max-lanes", "1", "--set", "queue_max=1"]), hasty = clientOf(small), long = { ...plain, messages: user("Tell me a story."), options: { temperature: 30, seed: 1, num_predict: 7000 } };
  const busy = await hasty.chat({ ...long, stream: true }), quit = new AbortController();
  const waits = post(small.url, "/api/chat", long, { signal: quit.signal }).catch(() => {});
  await until(async () => (await small.metrics()).tandem_num_requests_waiting === 1, "one answer waits");
  const full = await post(small.url, "/api/chat", long), told = await full.json();
  same([full.status, full.headers.get("retry-after"), typeof told.error], [429, "1", "string"], "a full queue");
  quit.abort();
  await waits;
  let n = 0;
  const aborted = await errorOf((async () => { for await (const _ of busy) if (++n === 3) busy.abort(); })(), "aborted");
  same(aborted.name, "AbortError", `a stream that is aborted: ${aborted}`);
  await until(async () => (await small.metrics()).tandem_num_requests_running === 0, "it is over at once");
  await small.stop();
  const short = await serve(tandem, ["--set", "request_timeout_ms=400"]);
  const whole = await errorOf(clientOf(short).chat(long), "an answer that takes too long");
  same([whole.status_code, /time/.test(whole.error)], [504, true], `an answer that takes too long: ${whole}`);
  const broken = await errorOf((async () => { for await (const _ of await clientOf(short).chat({ ...long, stream: true })) n++; })(), "a stream that takes too long");
  matches(broken.message, /time/, "a stream that takes too long");
  await short.stop();
  await sleep(0);
});

same(await server.stop(), 0, "SIGTERM ends the server");
finish();
