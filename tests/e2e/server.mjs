// Clients from npm, versions as in tests/package.json, against `tandem serve` with nano, or the model that TANDEM_MODEL names.
// Usage: node server.mjs TANDEM
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { check, CLEVER, errorOf, finish, group, matches, MODEL, post, same, serve, sleep, stopwatch, TOOLS, until } from "../server/serve.mjs";

const tandem = process.argv[2];
const server = await serve(tandem);
const openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const chat = openai.chat.completions;
const user = (content) => [{ role: "user", content }];
const model = MODEL, inParis = /^It is \w+ in Paris at 21 degrees\.$/;
const { get_weather, get_time, set_timer, turn_light } = TOOLS;

// --- one answer as two objects that must be equal: whole, and joined from its stream
const wholeOf = (r) => r.choices.map((c) => ({
  content: c.message.content, reasoning: c.message.reasoning_content, finish: c.finish_reason,
  calls: c.message.tool_calls?.map((x) => [x.type, x.function.name, x.function.arguments]),
  logprobs: c.logprobs?.content,
}));

async function joined(stream, request) {
  const choices = [], ids = new Set(), seen = { chunks: 0, usage: undefined, order: true };
  for await (const chunk of stream) {
    seen.chunks++;
    ids.add(chunk.id);
    check(!seen.usage, "nothing comes behind the usage");
    if (!chunk.choices.length) seen.usage = chunk.usage;
    for (const { index, delta, finish_reason, logprobs } of chunk.choices) {
      const first = !choices[index], c = (choices[index] ??= { content: undefined, reasoning: undefined, finish: null, calls: undefined, logprobs: undefined });
      same(delta.role, first ? "assistant" : undefined, "the role is in the first chunk alone");
      check(c.finish === null, "nothing comes behind the finish reason");
      if (delta.content) c.content = (c.content ?? "") + delta.content;
      if (delta.reasoning_content) c.reasoning = (c.reasoning ?? "") + delta.reasoning_content;
      if (logprobs?.content) (c.logprobs ??= []).push(...logprobs.content);
      for (const call of delta.tool_calls ?? []) {
        c.calls ??= [];
        if (c.calls.length === call.index) {
          matches(call.id, /^\w{8,}$/, "a call has an id");
          c.calls.push([call.type, call.function.name, ""]);
        } else {
          same([call.index, call.id, call.function.name], [c.calls.length - 1, undefined, undefined], "a call goes on");
        }
        c.calls[call.index][2] += call.function.arguments;
      }
      c.finish = finish_reason;
    }
  }
  same(ids.size, 1, "one id for all chunks");
  same(!!seen.usage, !!request.stream_options?.include_usage, "the usage comes when it was asked for");
  for (const c of choices) if (c.content === undefined) c.content = c.calls ? null : "";
  return { choices, ...seen };
}

const without = ({ prompt_tokens_details, ...usage }) => usage; // what was cached is another time's

async function streamEqualsWhole(what, request) {
  const whole = await chat.create({ model, ...request });
  const ask = { model, ...request, stream: true, stream_options: { include_usage: true } };
  const stream = await joined(await chat.create(ask), ask);
  same(stream.choices, wholeOf(whole), `${what}: the stream is the whole`);
  same(without(stream.usage), without(whole.usage), `${what}: the usage`);
  same(whole.usage.prompt_tokens + whole.usage.completion_tokens, whole.usage.total_tokens, `${what}: the usage adds up`);
  check(stream.chunks > 2, `${what}: it came in pieces`);
  return whole;
}

await group("the line that is printed", async () => {
  const line = /^ +(curl .*)$/m.exec(server.log())?.[1];
  const reply = JSON.parse(execFileSync("bash", ["-c", `${line} -s`], { encoding: "utf8" }));
  matches(reply.choices[0].message.content, CLEVER ? /85/ : /The answer is \d+/, "the curl line works when pasted");
});

await group("models", async () => {
  const list = (await openai.models.list()).data;
  same([list.length, list[0].id, list[0].object], [1, model, "model"], "the model in the list");
  same((await openai.models.retrieve(model)).id, model, "the model by its name");
  const e = await errorOf(openai.models.retrieve("gpt-5"), "a model that is not there");
  check(e instanceof OpenAI.NotFoundError, `a model that is not there is NotFoundError: ${e}`);
});

await group("stream equals whole", async () => {
  const sum = await streamEqualsWhole("a sum", { messages: user("What is 27 plus 58?"), temperature: 0 });
  matches(sum.choices[0].message.content, /85/, "27 plus 58");
  same([sum.object, sum.choices[0].finish_reason, sum.model], ["chat.completion", "stop", model], "the head of a reply");
  await streamEqualsWhole("a story", { messages: user("Tell me a short story about a fox."), temperature: 1, seed: 5 });
  await streamEqualsWhole("another seed", { messages: user("Tell me a short story about a fox."), temperature: 1, seed: 6 });
  await streamEqualsWhole("code", { messages: user("Write a Python function that doubles a number."), temperature: 0 });
  await streamEqualsWhole("Chinese", { messages: user("你好"), temperature: 0 });
  await streamEqualsWhole("bytes that are no text", { messages: user("Hi"), temperature: 30, seed: 3, max_tokens: 200, ignore_eos: true });
  await streamEqualsWhole("a system text", { messages: [{ role: "system", content: "Be brief." }, ...user("Who are you?")], temperature: 0 });
  await streamEqualsWhole("parts", { messages: [{ role: "user", content: [{ type: "text", text: "What is 2" }, { type: "text", text: " plus 3?" }] }], temperature: 0 });
  const cut = await streamEqualsWhole("cut short", { messages: user("Tell me a story."), max_tokens: 5, temperature: 0 });
  same([cut.choices[0].finish_reason, cut.usage.completion_tokens], ["length", 5], "cut short");
  const other = await streamEqualsWhole("cut short by the other name", { messages: user("Tell me a story."), max_completion_tokens: 5, max_tokens: 9, temperature: 0 });
  same(other.choices[0].message.content, cut.choices[0].message.content, "max_completion_tokens wins");
  const huge = await streamEqualsWhole("max_tokens over the context", { messages: user("Hi"), max_tokens: 2000000000, temperature: 0 });
  same(huge.choices[0].finish_reason, "stop", "max_tokens is cut to the context");
});

await group("stop strings", async () => {
  const ask = { messages: user("What is 27 plus 58?"), temperature: 0 };
  const all = (await chat.create({ model, ...ask })).choices[0].message.content;
  for (const stop of ["8", "85", ["zebra", "="], all.slice(-3), all.slice(1, 6)]) {
    const r = await streamEqualsWhole(`stop ${JSON.stringify(stop)}`, { ...ask, stop });
    const at = Math.min(...[stop].flat().map((s) => all.indexOf(s)).filter((i) => i >= 0));
    same([r.choices[0].message.content, r.choices[0].finish_reason], [all.slice(0, at), "stop"], `stop ${JSON.stringify(stop)}`);
  }
  const none = await streamEqualsWhole("a stop string that does not come", { ...ask, stop: "zebra" });
  same(none.choices[0].message.content, all, "a stop string that does not come");
});

await group("tools", async () => {
  const tools = [get_weather, set_timer, turn_light], temperature = 0;
  const one = await streamEqualsWhole("a call", { messages: user("What is the weather in Paris?"), tools, temperature });
  const call = one.choices[0].message.tool_calls?.[0];
  same([one.choices[0].finish_reason, one.choices[0].message.content, one.choices[0].message.tool_calls?.length], ["tool_calls", null, 1], "a call");
  same([call.function.name, JSON.parse(call.function.arguments)], ["get_weather", { city: "Paris" }], "a call's name and arguments");
  const timer = await streamEqualsWhole("a number", { messages: user("Set a timer for 25 minutes."), tools, temperature });
  same(JSON.parse(timer.choices[0].message.tool_calls[0].function.arguments), { minutes: 25 }, "a number");
  const light = await streamEqualsWhole("a boolean", { messages: user("Turn off the light in the kitchen."), tools, temperature });
  same(JSON.parse(light.choices[0].message.tool_calls[0].function.arguments), { on: false, room: "kitchen" }, "a boolean");

  const pair = { messages: user("What is the weather in Paris and in Oslo?"), tools: [get_weather, get_time], temperature };
  const two = (await streamEqualsWhole("two calls", pair)).choices[0].message.tool_calls;
  same(two?.map((x) => JSON.parse(x.function.arguments)), [{ city: "Paris" }, { city: "Oslo" }], "two calls at once");
  check(two?.[0].id !== two?.[1].id, "two calls have two ids");
  const single = await streamEqualsWhole("one call alone", { ...pair, parallel_tool_calls: false });
  same([single.choices[0].message.tool_calls.length, single.choices[0].finish_reason], [1, "tool_calls"], "parallel_tool_calls false");
  const none = await streamEqualsWhole("tool_choice none", { ...pair, tool_choice: "none" });
  same(none.choices[0].message.tool_calls, undefined, "tool_choice none");
  const hello = { ...pair, messages: user("Hello!") };
  const forced = (await streamEqualsWhole("tool_choice required", { ...hello, tool_choice: "required" })).choices[0].message;
  check(forced.tool_calls?.length > 0 && !forced.content, "tool_choice required: nothing but calls");
  const named = (await streamEqualsWhole("tool_choice by name", { ...hello, tool_choice: { type: "function", function: { name: "get_time" } } })).choices[0].message;
  same(named.tool_calls?.map((x) => [x.function.name, Object.keys(JSON.parse(x.function.arguments))]), [["get_time", ["city"]]], "tool_choice by name");

  const city = { type: "object", properties: { city: { type: "string", maxLength: 12 }, sunny: { type: "boolean" }, degrees: { type: "integer", minimum: -50, maximum: 50 } }, required: ["city", "sunny", "degrees"], additionalProperties: false };
  const held = { messages: user("What is the weather?"), temperature: 1, seed: 5, response_format: { type: "json_schema", json_schema: { name: "weather", strict: true, schema: city } } };
  const fits = JSON.parse((await streamEqualsWhole("a schema", held)).choices[0].message.content);
  same([typeof fits.city, typeof fits.sunny, Number.isInteger(fits.degrees)], ["string", "boolean", true], "a schema");
  const parsed = await chat.parse({ model, ...held });
  same(parsed.choices[0].message.parsed, fits, "the openai client's own parse");
  const cut = await chat.create({ model, ...held, max_tokens: 20 });
  same([Object.keys(JSON.parse(cut.choices[0].message.content)), cut.choices[0].finish_reason], [["city", "sunny", "degrees"], "length"], "a schema and a length");
  const refusedSchema = await errorOf(chat.create({ model, ...held, response_format: { type: "json_schema", json_schema: { name: "x", schema: { not: {} } } } }), "a schema that cannot be enforced");
  same([refusedSchema.status, refusedSchema.param], [400, "response_format"], "a schema that cannot be enforced");

  const asked = [];
  const weather = { type: "function", function: { ...get_weather.function, parse: JSON.parse, function: (args) => (asked.push(args), { sky: "sunny", temp: 21 }) } };
  for (const stream of [false, true]) {
    const runner = chat.runTools({ model, stream, messages: user("What is the weather in Paris?"), tools: [weather, set_timer], temperature });
    matches(await runner.finalContent(), CLEVER ? /^It is sunny in Paris at 21 degrees\.$/ : inParis, `the openai client's own loop${stream ? ", streamed" : ""}`);
  }
  same(asked, [{ city: "Paris" }, { city: "Paris" }], "the loop called the function");
});

await group("thinking", async () => {
  const messages = user("Tom has 12 apples and buys 7 more. How many apples does Tom have?"), temperature = 0;
  const plain = await streamEqualsWhole("not thinking", { messages, temperature });
  same([plain.choices[0].message.reasoning_content, plain.usage.completion_tokens_details.reasoning_tokens], [undefined, 0], "not thinking");
  const think = await streamEqualsWhole("thinking", { messages, temperature, reasoning_effort: "medium" });
  const { reasoning_content: thought, content } = think.choices[0].message;
  matches(thought, /12/, "there is a thought");
  matches(content, /19/, "there is an answer");
  check(!/channel|thought\n/.test(thought + content), `no markup is left: ${thought}|${content}`);
  const used = think.usage.completion_tokens_details.reasoning_tokens;
  check(used > 0 && used < think.usage.completion_tokens, `tokens of the thought are counted: ${used}`);
  const kwargs = await streamEqualsWhole("chat_template_kwargs", { messages, temperature, chat_template_kwargs: { enable_thinking: true } });
  same(wholeOf(kwargs), wholeOf(think), "chat_template_kwargs.enable_thinking is the same");
  same(wholeOf(await chat.create({ model, messages, temperature, reasoning_effort: "none" })), wholeOf(plain), "reasoning_effort none");
  const tools = await streamEqualsWhole("a thought before a call", { messages: user("What is the weather in Paris?"), tools: [get_weather, set_timer], temperature, reasoning_effort: "high" });
  check(tools.choices[0].message.reasoning_content && tools.choices[0].message.tool_calls, `a thought before a call: ${JSON.stringify(tools.choices[0])}`);
  const next = [...messages, { role: "assistant", content, reasoning_content: thought }, ...user("What is 2 plus 3?")];
  matches((await chat.create({ model, messages: next, temperature, reasoning_effort: "low" })).choices[0].message.content, CLEVER ? /5/ : /./, "a history with a thought");
});

await group("n", async () => {
  const ask = { messages: user("Tell me a short story about a fox."), temperature: 1, seed: 11, max_tokens: 40 };
  const three = await streamEqualsWhole("three answers", { ...ask, n: 3 });
  same(three.choices.map((c) => c.index), [0, 1, 2], "three answers");
  same(new Set(three.choices.map((c) => c.message.content)).size, 3, "three other answers");
  const one = await chat.create({ model, ...ask });
  same(one.choices[0].message.content, three.choices[0].message.content, "the first of several is the one alone");
  same(three.usage.prompt_tokens, one.usage.prompt_tokens, "the prompt counts once");
});

await group("logprobs", async () => {
  const ask = { messages: user("What is 27 plus 58?"), temperature: 0, logprobs: true, top_logprobs: 3 };
  const { choices: [{ message, logprobs: { content } }], usage } = await streamEqualsWhole("logprobs", ask);
  same(Buffer.from(content.flatMap((x) => x.bytes ?? [])).toString().startsWith(message.content), true, "the tokens' bytes are the text");
  check(content.length === usage.completion_tokens || content.length === usage.completion_tokens - 1, `as many as tokens: ${content.length} of ${usage.completion_tokens}`);
  check(content.every((x) => x.logprob <= 0 && x.top_logprobs.length === 3), "three likely ones beside each");
  check(content.every((x) => x.top_logprobs[0].token === x.token && x.top_logprobs[0].logprob === x.logprob), "greedy takes the likeliest");
  check(content.every(({ top_logprobs: t }) => t[0].logprob >= t[1].logprob && t[1].logprob >= t[2].logprob), "in order");
  const plain = await chat.create({ model, ...ask, logprobs: undefined, top_logprobs: undefined });
  same([plain.choices[0].logprobs, plain.choices[0].message.content], [null, message.content], "logprobs change nothing");
});

await group("sampling", async () => {
  const ask = { messages: user("Tell me a short story about a fox."), max_tokens: 30 }, text = async (more) => (await chat.create({ model, ...ask, ...more })).choices[0].message.content;
  same(await text({ temperature: 1, seed: 1 }), await text({ temperature: 1, seed: 1 }), "a seed decides the text");
  check((await text({ temperature: 1, seed: 1 })) !== (await text({ temperature: 1, seed: 2 })), "another seed, another text");
  same(await text({ temperature: 1, seed: 4, top_k: 1 }), await text({ temperature: 0 }), "top_k 1 is greedy");
  same(await text({ temperature: 1, seed: 4, top_p: 0 }), await text({ temperature: 0 }), "top_p 0 is greedy");
  check((await text({ temperature: 0, frequency_penalty: 2, presence_penalty: 2 })) !== (await text({ temperature: 0 })), "penalties");
  const [first] = (await chat.create({ model, ...ask, temperature: 0, logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content;
  const { tokens } = await (await post(server.url, "/tokenize", { content: first.token })).json();
  const banned = await chat.create({ model, ...ask, temperature: 0, logit_bias: { [tokens[0]]: -100 }, logprobs: true });
  same(banned.choices[0].logprobs.content[0].token, first.top_logprobs[1].token, "a banned token gives way to the next");
});

await group("speculation", async () => {
  const ask = { messages: user("What is 271 plus 588?"), temperature: 0 };
  const [off, auto, dflash] = await Promise.all([{ speculative: "off" }, {}, { speculative: { method: "dflash", draft_max: 4 } }].map((s) => chat.create({ model, ...ask, ...s })));
  same(wholeOf(auto), wholeOf(off), "speculation does not change the text");
  same(wholeOf(dflash), wholeOf(off), "nor does a method");
  same([off.timings.draft_n, off.timings.draft_n_accepted], [0, 0], "off drafts nothing");
  check(dflash.timings.draft_n > 0 && dflash.timings.draft_n_accepted > 0, `dflash drafts: ${JSON.stringify(dflash.timings)}`);
  for (const key of ["cache_n", "prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second", "acceptance_length", "route", "route_reason"])
    check(key in auto.timings, `timings.${key}`);
  same(auto.timings.predicted_n, auto.usage.completion_tokens, "timings count what the usage counts");
  const e = await errorOf(chat.create({ model, ...ask, speculative: "magic" }), "an unknown method");
  same([e.status, e.param], [400, "speculative"], "an unknown method");
});

await group("completions", async () => {
  const ask = { model, prompt: "Once upon a time", temperature: 0, max_tokens: 24 };
  const text = async (request) => {
    const out = [], finish = [];
    let usage;
    for await (const chunk of await openai.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) {
      for (const c of chunk.choices) {
        out[c.index] = (out[c.index] ?? "") + c.text;
        finish[c.index] = c.finish_reason;
      }
      usage ??= chunk.usage;
    }
    return { out, finish, usage };
  };
  for (const [what, more] of Object.entries({ plain: {}, "two answers": { n: 2, temperature: 1, seed: 3 }, "two prompts": { prompt: ["Once upon", "def double"] }, stop: { stop: " " }, logprobs: { logprobs: 2 } })) {
    const whole = await openai.completions.create({ ...ask, ...more }), stream = await text({ ...ask, ...more });
    same(stream.out, whole.choices.map((c) => c.text), `completions, ${what}: the stream is the whole`);
    same(stream.finish, whole.choices.map((c) => c.finish_reason), `completions, ${what}: why it ended`);
    same(without(stream.usage), without(whole.usage), `completions, ${what}: the usage`);
    if (what === "plain") same(whole.usage.completion_tokens, whole.choices[0].finish_reason === "length" ? 24 : whole.usage.completion_tokens, "as many tokens as asked for");
    if (what === "logprobs") same(whole.choices[0].logprobs.tokens.join(""), whole.choices[0].text, "the tokens are the text");
  }
  const ids = (await (await post(server.url, "/tokenize", { content: "Once upon a time", add_special: true })).json()).tokens;
  const [a, b] = await Promise.all([ask, { ...ask, prompt: ids }].map((x) => openai.completions.create(x)));
  same(b.choices[0].text, a.choices[0].text, "a prompt of ids");
});

await group("abort", async () => {
  const before = await server.metrics();
  const stream = await chat.create({ model, messages: user("Tell me a story."), max_tokens: 6000, ignore_eos: true, temperature: 1, stream: true });
  let n = 0;
  for await (const _ of stream) if (++n === 5) break; // the client closes the connection
  await until(async () => (await server.metrics()).tandem_num_requests_running === 0, "an answer whose client left ends");
  const quit = new AbortController();
  const waiting = chat.create({ model, messages: user("Tell me a story."), max_tokens: 6000, ignore_eos: true }, { signal: quit.signal });
  until(async () => (await server.metrics()).tandem_num_requests_running === 1, "an answer is written").then(() => quit.abort());
  check((await errorOf(waiting, "aborted")) instanceof OpenAI.APIUserAbortError, "an aborted request");
  await until(async () => (await server.metrics()).tandem_num_requests_running === 0, "an answer whose client left ends");
  const after = await server.metrics(), grown = (name) => after[name] - before[name];
  same(grown('tandem_request_success_total{finished_reason="abort"}'), 2, "both count as aborted");
  const tokens = grown("tandem_generation_tokens_total");
  check(tokens >= 4 && tokens < 6000, `tokens are counted to where it ended: ${tokens}`);
  same(grown("tandem_http_disconnects_total"), 2, "clients that left");
});

await group("errors", async () => {
  const of = (request, what) => errorOf(chat.create({ model, messages: user("Hi"), ...request }), what);
  for (const [param, value] of Object.entries({
    temperature: "hot", top_p: 2, n: 0, max_tokens: -2, seed: 1.5, stop: [""], logit_bias: { 1: 1000 }, top_logprobs: 21, messages: [], tools: "f",
    stream: "yes", stream_options: 1, presence_penalty: {}, "n ": undefined,
  })) {
    if (value === undefined) continue;
    const e = await of({ [param]: value }, param);
    check(e instanceof OpenAI.BadRequestError, `${param}: BadRequestError, not ${e}`);
    same([e.status, e.type, e.param?.split(/[.[]/)[0]], [400, "invalid_request_error", param], `${param} is named`);
    matches(e.message, new RegExp(param), `${param} is in the sentence`);
  }
  const long = await of({ messages: user("word ".repeat(70000)) }, "a long prompt");
  check(long instanceof OpenAI.BadRequestError, `a long prompt: ${long}`);
  same([long.code, long.param], ["context_length_exceeded", "messages"], "a long prompt");
  matches(long.message, /maximum context length is \d+ tokens.*resulted in \d+ tokens.*reduce the length of the messages/, "a long prompt, in the words that clients look for");
  const missing = await errorOf(openai.post("/nothing", { body: {} }), "a path that is not there");
  check(missing instanceof OpenAI.NotFoundError && missing.error?.message, `a path that is not there: ${missing}`);
  const wrong = await errorOf(openai.get("/chat/completions"), "a method that is not there");
  same(wrong.status, 405, "a method that is not there");
  for (const body of ["", "{", "[]", "null", '{"messages":[]} x', '{"messages":[],"messages":[]}', "\xff", '{"a":"\xed\xa0\x80"}']) {
    const r = await fetch(`${server.url}/v1/chat/completions`, { method: "POST", body: Buffer.from(body, "latin1"), headers: { "content-type": "application/json" } });
    const { error } = await r.json();
    check(r.status === 400 && error.type === "invalid_request_error" && error.message, `a body of ${JSON.stringify(body)}: ${r.status}`);
  }
  const fine = await chat.create({ model: "gpt-5", messages: user("Hi"), temperature: 0, store: false, metadata: { a: "b" }, nonsense: [1] });
  same(fine.choices[0].finish_reason, "stop", "unknown fields are ignored");
  const other = await post(server.url, "/chat/completions?beta=true", { messages: user("Hi") }, { headers: { "x-request-id": "my-own-7" } });
  same([other.status, other.headers.get("x-request-id")], [200, "my-own-7"], "without /v1, with a query, with an id");
});

await group("429 then success", async () => {
  const small = await serve(tandem, ["--max-lanes", "1", "--set", "queue_max=1"]);
  const client = new OpenAI({ baseURL: `${small.url}/v1`, apiKey: "none", maxRetries: 0 });
  const quit = new AbortController(), long = { model, messages: user("Tell me a story."), max_tokens: 6000, ignore_eos: true, stream: true };
  const busy = [await client.chat.completions.create(long, { signal: quit.signal })];
  const queued = client.chat.completions.create({ ...long, stream: false }, { signal: quit.signal }).catch(() => {});
  await until(async () => (await small.metrics()).tandem_num_requests_waiting === 1, "one answer waits");
  const watch = stopwatch();
  const e = await errorOf(client.chat.completions.create({ model, messages: user("Hi") }), "the queue is full");
  const took = watch.ms();
  check(e instanceof OpenAI.RateLimitError, `a full queue is RateLimitError: ${e}`);
  watch.inTime(took, 100, "and is told at once");
  matches(e.headers?.get("retry-after"), /^[1-9]\d*$/, "Retry-After");
  check(!/story|lane|queue_max|request_id|tenant/.test(e.message), `it says nothing of others: ${e.message}`);
  same((await (await fetch(`${small.url}/ready`)).json(), (await fetch(`${small.url}/ready`)).status), 503, "not ready while the queue is full");
  setTimeout(() => quit.abort(), 300);
  const patient = new OpenAI({ baseURL: `${small.url}/v1`, apiKey: "none", maxRetries: 5 });
  same((await patient.chat.completions.create({ model, messages: user("Hi"), temperature: 0 })).choices[0].finish_reason, "stop", "asked again, answered");
  const refused = (await small.metrics()).tandem_requests_refused_total;
  check(refused >= 2, `refused before: ${refused}`);
  for await (const _ of busy[0]) break;
  await queued;
  same(await small.stop(), 0, "SIGTERM ends the server");
});

await group("an answer that fails", async () => {
  const hasty = await serve(tandem, ["--set", "request_timeout_ms=400"]);
  const client = new OpenAI({ baseURL: `${hasty.url}/v1`, apiKey: "none", maxRetries: 0 }).chat.completions;
  const long = { model, messages: user("Tell me a story."), max_tokens: 8000, ignore_eos: true, temperature: 0 };
  const whole = await errorOf(client.create(long), "an answer that takes too long");
  check(whole instanceof OpenAI.InternalServerError && whole.status === 504, `an answer that takes too long: ${whole}`);
  let pieces = 0, error;
  try {
    for await (const chunk of await client.create({ ...long, stream: true })) pieces += !!chunk.choices[0]?.delta.content;
  } catch (e) {
    error = e;
  }
  check(pieces > 3, `what was made was told: ${pieces} pieces`);
  check(error instanceof OpenAI.APIError && /time/.test(error.message), `a stream that takes too long is APIError: ${error}`);
  const raw = await post(hasty.url, "/v1/chat/completions", { ...long, stream: true, stream_options: { include_usage: true } });
  const events = [];
  const broken = await errorOf((async () => {
    for await (const bytes of raw.body) events.push(Buffer.from(bytes).toString());
  })(), "a stream that fails does not end well");
  check(broken.cause || broken.code || broken.message, "the connection breaks");
  const lines = events.join("").split("\n\n").filter(Boolean);
  matches(lines.at(-1), /^data: \{"error":\{"message":".*","type":"timeout_error"/, "its last event is the error");
  matches(lines.at(-2), /"usage":\{"prompt_tokens":\d+,"completion_tokens":[1-9]/, "before it the usage");
  const aiError = [];
  const flow = streamText({ model: createOpenAICompatible({ name: "tandem", baseURL: `${hasty.url}/v1` })(model), prompt: "Tell me a story.", maxRetries: 0, maxOutputTokens: 8000, providerOptions: { tandem: { ignore_eos: true } }, onError: ({ error: e }) => aiError.push(e) });
  try {
    for await (const _ of flow.textStream);
  } catch (e) {
    aiError.push(e);
  }
  matches(JSON.stringify(aiError.map(String)), /time/, "AI SDK: a stream that fails");
  same(await hasty.stop(), 0, "SIGTERM ends the server");
});

await group("the end", async () => {
  const leaving = await serve(tandem);
  const client = new OpenAI({ baseURL: `${leaving.url}/v1`, apiKey: "none", maxRetries: 0 }).chat.completions;
  const ask = { model, messages: user("Tell me a story."), max_tokens: 500, ignore_eos: true, temperature: 0 };
  const whole = (await client.create(ask)).choices[0].message.content, stream = await client.create({ ...ask, stream: true });
  let text = "", over;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    over ??= leaving.stop();
  }
  same(text, whole, "a stream that runs at SIGTERM goes on to its end");
  same(await over, 0, "and then the server ends");
  check(await errorOf(client.create(ask), "nobody is there"), "new requests are not taken");
});

await group("keys", async () => {
  const dir = mkdtempSync(join(tmpdir(), "tandem-"));
  process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
  const keys = join(dir, "keys");
  const key = execFileSync(tandem, ["key", "--file", keys, "alice"], { encoding: "utf8" }).trim().split(/\s+/).pop();
  check(!readFileSync(keys, "utf8").includes(key), "the file holds a hash");
  const locked = await serve(tandem, ["--api-key-file", keys]);
  const e = await errorOf(new OpenAI({ baseURL: `${locked.url}/v1`, apiKey: "wrong", maxRetries: 0 }).models.list(), "a wrong key");
  check(e instanceof OpenAI.AuthenticationError, `a wrong key is AuthenticationError: ${e}`);
  for (const path of ["/", "/metrics", "/props", "/slots", "/v1/models", "/version", "/ready"]) same((await fetch(locked.url + path)).status, 401, `${path} needs the key`);
  same((await fetch(`${locked.url}/health`)).status, 200, "/health does not");
  same((await new OpenAI({ baseURL: `${locked.url}/v1`, apiKey: key }).models.list()).data[0].id, model, "the right key");
  await locked.stop();
});

// --- the AI SDK
const ai = createOpenAICompatible({ name: "tandem", baseURL: `${server.url}/v1`, includeUsage: true })(model);
const aiTools = (asked) => ({
  get_weather: tool({ description: get_weather.function.description, inputSchema: jsonSchema(get_weather.function.parameters), execute: async (input) => (asked.push(input), { sky: "sunny", temp: 21 }) }),
  set_timer: tool({ description: set_timer.function.description, inputSchema: jsonSchema(set_timer.function.parameters), execute: async () => "started" }),
});

await group("AI SDK", async () => {
  const prompt = "What is 27 plus 58?", temperature = 0, maxRetries = 0;
  const whole = await generateText({ model: ai, prompt, temperature, maxRetries });
  const stream = streamText({ model: ai, prompt, temperature, maxRetries });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  same([text, await stream.finishReason], [whole.text, whole.finishReason], "AI SDK: the stream is the whole");
  same([whole.finishReason, (await stream.usage).outputTokens], ["stop", whole.usage.outputTokens], "AI SDK: the usage");
  const asked = [];
  const loop = await generateText({ model: ai, prompt: "What is the weather in Paris?", tools: aiTools(asked), stopWhen: stepCountIs(3), temperature, maxRetries });
  matches(loop.text, CLEVER ? /^It is sunny in Paris at 21 degrees\.$/ : inParis, "AI SDK: a loop with a tool");
  same(loop.steps.length, 2, "AI SDK: a loop with a tool has two steps");
  const live = streamText({ model: ai, prompt: "What is the weather in Paris?", tools: aiTools(asked), stopWhen: stepCountIs(3), temperature, maxRetries });
  same(await live.text, loop.text, "AI SDK: the same, streamed");
  same(asked, [{ city: "Paris" }, { city: "Paris" }], "AI SDK: the tool was called");
  const think = { model: ai, prompt: "Tom has 12 apples and buys 7 more. How many apples does Tom have?", temperature, maxRetries, providerOptions: { tandem: { reasoningEffort: "medium" } } };
  const thought = await generateText(think), flow = streamText(think);
  matches(thought.reasoningText, /12/, "AI SDK: a thought");
  same([await flow.reasoningText, await flow.text], [thought.reasoningText, thought.text], "AI SDK: the same, streamed");
  const bad = await errorOf(generateText({ model: ai, prompt, temperature: 1000, maxRetries }), "AI SDK: a wrong field");
  same(bad.statusCode, 400, "AI SDK: a wrong field");
  matches(bad.message, /temperature/, "AI SDK: it is named");
  const quit = new AbortController(), before = await server.metrics();
  const cut = streamText({ model: ai, prompt: "Tell me a story.", temperature: 1, maxRetries, abortSignal: quit.signal, maxOutputTokens: 6000, providerOptions: { tandem: { ignore_eos: true } } });
  let pieces = 0;
  for await (const _ of cut.textStream) if (++pieces === 3) quit.abort();
  await until(async () => (await server.metrics()).tandem_num_requests_running === 0, "AI SDK: an abort frees the lane");
  same((await server.metrics())['tandem_request_success_total{finished_reason="abort"}'] - before['tandem_request_success_total{finished_reason="abort"}'], 1, "AI SDK: an abort");
});

await group("many at once", async () => {
  const ask = (i) => ({ model, messages: user(`What is ${20 + i} plus ${50 + i}?`), temperature: 0 });
  const alone = [];
  for (let i = 0; i < 24; i++) alone.push((await chat.create(ask(i))).choices[0].message.content);
  const together = await Promise.all(alone.map(async (_, i) => (await chat.create(ask(i))).choices[0].message.content));
  same(together, alone, "each as if it were alone");
});

check(server.alive(), "the server lives");
same(await server.stop(), 0, "SIGTERM ends the server");
finish();
