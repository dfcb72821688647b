// The openai client's responses, version as in tests/package.json, against `tandem serve` with nano, or the model that
// TANDEM_MODEL names. Usage: node responses.mjs TANDEM
import OpenAI from "openai";
import { makeParseableTextFormat } from "openai/lib/parser";
import { check, errorOf, finish, group, matches, MODEL, post, same, serve, TOOLS, until } from "../server/serve.mjs";

const tandem = process.argv[2];
const server = await serve(tandem);
const openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const responses = openai.responses, chat = openai.chat.completions;
const model = MODEL, temperature = 0;
const flat = ({ type, function: f }) => ({ type, strict: false, ...f });
const [get_weather, get_time, set_timer, turn_light] = ["get_weather", "get_time", "set_timer", "turn_light"].map((x) => flat(TOOLS[x]));
const sum = "What is 27 plus 58?", apples = "Tom has 12 apples and buys 7 more. How many apples does Tom have?", paris = "What is the weather in Paris?";

// --- what is the same of two responses to the same request: all but ids, times and what was cached
function bare(response) {
  const id = response.id.slice("resp_".length);
  matches(id, /^\w{24}$/, "the id of a response");
  const wire = JSON.stringify(response, (key, value) => (/^(output_text|output_parsed|parsed|parsed_arguments)$/.test(key) ? undefined : value)); // those are the client's own
  const { timings, created_at, completed_at, ...rest } = JSON.parse(wire.replaceAll(id, "X"));
  check(timings?.predicted_n > 0 && created_at > 1.7e9, "times are told");
  same(!!completed_at, response.status === "completed", "when it was completed");
  delete rest.usage.input_tokens_details.cached_tokens;
  return rest;
}

// The events of a stream, looked at one by one; the last response.
async function events(request) {
  const raw = await post(server.url, "/v1/responses", { model, ...request, stream: true });
  same([raw.status, raw.headers.get("content-type")], [200, "text/event-stream"], "a stream");
  const text = await raw.text(), all = [];
  for (const block of text.split("\n\n").filter(Boolean)) {
    const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(block) ?? [];
    all.push(JSON.parse(data));
    same([all.at(-1).type, all.at(-1).sequence_number], [name, all.length - 1], "an event has its name and its number");
  }
  same(all.slice(0, 2).map((e) => [e.type, e.response.status, e.response.output]), [["response.created", "in_progress", []], ["response.in_progress", "in_progress", []]], "how a stream begins");
  return all;
}

// Every item is opened, told in pieces that are its text, and closed, one after another.
function joined(all, what) {
  const items = [];
  let open, text, parts;
  for (const e of all.slice(2, -1)) {
    if (e.type === "response.output_item.added") {
      same([open, e.output_index, e.item.status], [undefined, items.length, "in_progress"], `${what}: an item begins`);
      [open, text, parts] = [e.item, "", 0];
    } else if (e.type === "response.output_item.done") {
      same([e.output_index, e.item.id, e.item.type], [items.length, open.id, open.type], `${what}: an item ends`);
      const full = e.item.arguments ?? e.item.input ?? (e.item.content?.[0] ?? e.item.summary?.[0]).text;
      same([text, parts], [full, open.type === "message" || open.type === "reasoning" ? 2 : 0], `${what}: its pieces are its text`);
      items.push(e.item);
      open = undefined;
    } else {
      same([e.item_id, e.output_index], [open.id, items.length], `${what}: ${e.type} is of the open item`);
      if (e.type.endsWith(".delta")) text += e.delta;
      else if (e.part) parts++;
      else same(e.text ?? e.arguments ?? e.input, text, `${what}: ${e.type}`);
    }
  }
  return items;
}

async function streamEqualsWhole(what, request) {
  const ask = { model, temperature, ...request };
  const whole = await responses.create(ask), all = await events(ask), last = all.at(-1);
  same(last.type, `response.${whole.status}`, `${what}: the last event`);
  same(bare(last.response), bare(whole), `${what}: the stream's response is the whole`);
  same(joined(all, what), last.response.output, `${what}: the items are the output`);
  const helper = await responses.stream(ask).finalResponse();
  same(helper.output_text, whole.output_text, `${what}: the client's own way to join it`);
  same(bare(helper), bare(whole), `${what}: and all of it`);
  same(whole.usage.input_tokens + whole.usage.output_tokens, whole.usage.total_tokens, `${what}: the usage adds up`);
  return whole;
}

await group("texts", async () => {
  const r = await streamEqualsWhole("a sum", { input: sum });
  same([r.object, r.status, r.model, r.error, r.incomplete_details, r.output.length], ["response", "completed", model, null, null, 1], "the head of a response");
  same(r.output_text, (await chat.create({ model, temperature, messages: [{ role: "user", content: sum }] })).choices[0].message.content, "as a chat says it");
  await streamEqualsWhole("a list", { input: [{ role: "user", content: sum }] });
  await streamEqualsWhole("a story", { input: "Tell me a short story about a fox.", temperature: 1, seed: 5 });
  await streamEqualsWhole("bytes that are no text", { input: "Hi", temperature: 30, seed: 3, max_output_tokens: 200, ignore_eos: true });
  const cut = await streamEqualsWhole("cut short", { input: "Tell me a story.", max_output_tokens: 5 });
  same([cut.status, cut.incomplete_details, cut.output[0].status, cut.usage.output_tokens], ["incomplete", { reason: "max_output_tokens" }, "incomplete", 5], "cut short");
  same((await responses.create({ model, temperature, input: "Hi", max_output_tokens: 2e9 })).status, "completed", "max_output_tokens is cut to the context");
});

await group("conversations", async () => {
  const parts = [{ role: "developer", content: [{ type: "input_text", text: "Be brief." }] }, { type: "message", role: "user", content: [{ type: "input_text", text: "What is 2 plus 3?" }] },
    { type: "message", id: "msg_1", role: "assistant", status: "completed", content: [{ type: "output_text", text: "The answer is 5.", annotations: [] }] }, { role: "user", content: "Who are you?" }];
  const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: "What is 2 plus 3?" }, { role: "assistant", content: "The answer is 5." }, { role: "user", content: "Who are you?" }];
  const r = await streamEqualsWhole("items", { input: parts });
  same(r.output_text, (await chat.create({ model, temperature, messages })).choices[0].message.content, "items are the chat's messages");
  same(await responses.inputTokens.count({ model, input: parts }), { object: "response.input_tokens", input_tokens: r.usage.input_tokens }, "how long its prompt is");
  const two = await responses.create({ model, temperature, instructions: "Be brief.", input: parts.slice(1) });
  same([two.output_text, two.usage.input_tokens, two.instructions], [r.output_text, r.usage.input_tokens, "Be brief."], "instructions are a system text");
  const again = await responses.create({ model, temperature, input: [...parts, ...r.output, { role: "user", content: sum }] });
  matches(again.output_text, /85/, "what was answered goes back in");
  check(again.usage.input_tokens_details.cached_tokens > 0, "and is found in the cache");
});

await group("tools", async () => {
  const tools = [get_weather, set_timer, turn_light];
  const one = await streamEqualsWhole("a call", { input: paris, tools });
  const call = one.output[0];
  same([one.output.length, call.type, call.status, call.name, JSON.parse(call.arguments)], [1, "function_call", "completed", "get_weather", { city: "Paris" }], "a call");
  matches(call.call_id, /^call_\w+$/, "its id");
  same(JSON.parse((await streamEqualsWhole("a number", { input: "Set a timer for 25 minutes.", tools })).output[0].arguments), { minutes: 25 }, "a number");
  for (const output of ['{"sky":"sunny","temp":21}', [{ type: "input_text", text: '{"sky":"sunny","temp":21}' }]]) {
    const input = [{ role: "user", content: paris }, ...one.output, { type: "function_call_output", call_id: call.call_id, output }];
    const answer = await streamEqualsWhole("its answer", { input, tools });
    const messages = [{ role: "user", content: paris }, { role: "assistant", content: null, tool_calls: [{ id: "c", type: "function", function: { name: call.name, arguments: call.arguments } }] }, { role: "tool", tool_call_id: "c", content: '{"sky":"sunny","temp":21}' }];
    same(answer.output_text, (await chat.create({ model, temperature, messages, tools: tools.map(({ type, strict, ...f }) => ({ type, function: f })) })).choices[0].message.content, "an answer is the chat's");
  }
  for (let n = 1; n < one.usage.output_tokens; n++) {
    const cut = await streamEqualsWhole(`a call cut after ${n}`, { input: paris, tools, max_output_tokens: n });
    const calls = cut.output.filter((x) => x.type === "function_call");
    check(calls.every((x) => x.status === "incomplete" || JSON.parse(x.arguments).city === "Paris"), `a call cut after ${n} tokens is not complete: ${JSON.stringify(cut.output)}`);
  }
  const pair = { input: "What is the weather in Paris and in Oslo?", tools: [get_weather, get_time] };
  const two = (await streamEqualsWhole("two calls", pair)).output;
  same(two.map((x) => JSON.parse(x.arguments)), [{ city: "Paris" }, { city: "Oslo" }], "two calls at once");
  check(two[0].call_id !== two[1].call_id && two[0].id !== two[1].id, "two calls have two ids");
  same((await streamEqualsWhole("one call alone", { ...pair, parallel_tool_calls: false })).output.length, 1, "parallel_tool_calls false");
  same((await streamEqualsWhole("tool_choice none", { ...pair, tool_choice: "none" })).output[0].type, "message", "tool_choice none");
  const allowed = await streamEqualsWhole("allowed tools", { input: paris, tools: [...tools, get_time], tool_choice: { type: "allowed_tools", mode: "auto", tools: [get_weather, set_timer, turn_light].map(({ name }) => ({ type: "function", name })) } });
  same([allowed.usage.input_tokens, allowed.output[0].name], [one.usage.input_tokens, "get_weather"], "allowed tools");
  const more = await responses.create({ model, temperature, input: paris, tools: [...tools, { type: "web_search" }, { type: "mcp", server_label: "x" }] });
  same(more.usage.input_tokens, one.usage.input_tokens, "tools of unknown types are ignored");
  const space = await streamEqualsWhole("a namespace", { input: paris, tools: [{ type: "namespace", name: "home", description: "x", tools }] });
  check(space.usage.input_tokens > one.usage.input_tokens, "a namespace's tools are shown");
});

await group("forms", async () => {
  const schema = { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"], additionalProperties: false };
  const format = { type: "json_schema", name: "person", strict: true, schema }, input = "Tom is 5 years old.";
  const r = await streamEqualsWhole("json_schema", { input, text: { format } });
  same([JSON.parse(r.output_text), r.text.format], [{ name: "Tom", age: 5 }, format], "json_schema");
  const parseable = makeParseableTextFormat(format, JSON.parse);
  const ask = { model, temperature, input, text: { format: parseable } };
  same((await responses.parse(ask)).output_parsed, { name: "Tom", age: 5 }, "the client's own way to parse it");
  same((await responses.stream(ask).finalResponse()).output_parsed, { name: "Tom", age: 5 }, "streamed, too");
  for (const seed of [1, 2, 3]) {
    const wild = await streamEqualsWhole("json_schema at a high temperature", { input: "Hi", temperature: 3, seed, text: { format } });
    const { name, age } = JSON.parse(wild.output_text);
    same([typeof name, Number.isInteger(age)], ["string", true], "json_schema at a high temperature");
  }
  const short = await streamEqualsWhole("json_schema, cut short", { input: "Tell me a story.", temperature: 1, seed: 4, max_output_tokens: 14, text: { format: { ...format, schema: { type: "object", properties: { story: { type: "string" } }, required: ["story"] } } } });
  same([short.status, typeof JSON.parse(short.output_text).story], ["incomplete", "string"], "cut short it is still what was asked for");
  const thought = await streamEqualsWhole("json_schema behind a thought", { input: apples, reasoning: { effort: "low" }, text: { format: { ...format, schema: { type: "object", properties: { apples: { type: "integer" } }, required: ["apples"] } } } });
  same(typeof JSON.parse(thought.output_text).apples, "number", "json_schema behind a thought");
  same(typeof JSON.parse((await streamEqualsWhole("json_object", { input, text: { format: { type: "json_object" } } })).output_text), "object", "json_object");
  const e = await errorOf(responses.create({ model, input, text: { format: { ...format, schema: { type: "objekt" } } } }), "a schema that is none");
  same([e.status, e.param], [400, "text.format"], "a schema that is none");
});

await group("forced calls", async () => {
  const tools = [get_weather, set_timer], home = { type: "namespace", name: "home", tools: [turn_light] };
  const any = await streamEqualsWhole("required", { input: "Hi", tools, tool_choice: "required" });
  check(any.output.every((x) => x.type === "function_call") && any.output.length, "required: there is a call");
  const named = await streamEqualsWhole("by name", { input: "Hi", tools, tool_choice: { type: "function", name: "set_timer" } });
  same([named.output[0].name, typeof JSON.parse(named.output[0].arguments).minutes], ["set_timer", "number"], "by name");
  const light = (await streamEqualsWhole("of a namespace", { input: "Hi", tools: [...tools, home], tool_choice: { type: "function", name: "turn_light" } })).output[0];
  same([light.name, light.namespace, typeof JSON.parse(light.arguments).on], ["turn_light", "home", "boolean"], "of a namespace");
  const patch = (await streamEqualsWhole("a custom tool", { input: "Hi", tools: [{ type: "custom", name: "patch", description: "Apply a patch" }], tool_choice: { type: "custom", name: "patch" }, max_output_tokens: 60 })).output[0];
  same([patch.type, patch.name, typeof patch.input], ["custom_tool_call", "patch", "string"], "a custom tool");
  const some = await streamEqualsWhole("of the allowed", { input: paris, tools, tool_choice: { type: "allowed_tools", mode: "required", tools: [{ type: "function", name: "set_timer" }] } });
  same(some.output[0].name, "set_timer", "of the allowed");
});

await group("thinking", async () => {
  const think = await streamEqualsWhole("thinking", { input: apples, reasoning: { effort: "medium" }, include: ["reasoning.encrypted_content"] });
  const [thought, message] = think.output;
  same([think.output.length, thought.type, message.type, thought.summary], [2, "reasoning", "message", []], "a thought and an answer");
  matches(thought.content[0].text, /12/, "the thought");
  matches(think.output_text, /19/, "the answer");
  check(think.usage.output_tokens_details.reasoning_tokens > 0, "tokens of the thought are counted");
  const short = await streamEqualsWhole("a summary", { input: apples, reasoning: { effort: "medium", summary: "auto" } });
  same([short.output[0].summary, short.output[0].content, short.output[0].encrypted_content], [[{ type: "summary_text", text: thought.content[0].text }], undefined, undefined], "a thought as its summary");
  same((await streamEqualsWhole("none", { input: apples, reasoning: { effort: "none" } })).output.length, 1, "no thought");
  const call = await streamEqualsWhole("a thought before a call", { input: paris, tools: [get_weather, set_timer], reasoning: { effort: "high" } });
  same(call.output.map((x) => x.type), ["reasoning", "function_call"], "a thought before a call");
  const answer = { type: "function_call_output", call_id: call.output[1].call_id, output: '{"sky":"sunny","temp":21}' };
  const next = (thought) => responses.create({ model, temperature, input: [{ role: "user", content: paris }, ...thought, call.output[1], answer], tools: [get_weather, set_timer], reasoning: { effort: "high" } });
  const { content, ...rest } = call.output[0];
  const [plain, sealed, summed, foreign, none] = await Promise.all([[call.output[0]], [{ ...rest, encrypted_content: `thought:${content[0].text}` }], [{ ...rest, summary: [{ type: "summary_text", text: content[0].text }] }], [{ ...rest, encrypted_content: "gAAAA" }], []].map(next));
  same([sealed, summed].map((x) => [x.output_text, x.usage.input_tokens]), [plain, plain].map((x) => [x.output_text, x.usage.input_tokens]), "a thought goes back in, however it was told");
  same(foreign.usage.input_tokens, none.usage.input_tokens, "what others sealed is nothing");
  check(plain.usage.input_tokens > none.usage.input_tokens, "and ours is something");
});

await group("logprobs", async () => {
  const r = await streamEqualsWhole("logprobs", { input: apples, reasoning: { effort: "low" }, include: ["message.output_text.logprobs"], top_logprobs: 3 });
  const { text, logprobs } = r.output[1].content[0];
  // Line ends before Qwen's text are tokens, but no part of it.
  same(Buffer.from(logprobs.flatMap((x) => x.bytes)).toString().trimStart(), text, "the tokens' bytes are the text, without the thought");
  check(logprobs.every((x) => x.top_logprobs.length === 3 && x.top_logprobs[0].token === x.token), "three likely ones beside each");
  const all = await events({ input: sum, temperature, include: ["message.output_text.logprobs"] });
  const pieces = all.filter((e) => e.type === "response.output_text.delta").flatMap((e) => e.logprobs);
  same(pieces, all.at(-1).response.output[0].content[0].logprobs, "in pieces as in all");
  same((await responses.create({ model, temperature, input: sum })).output[0].content[0].logprobs, [], "not asked for, not told");
});

await group("what is repeated", async () => {
  const metadata = { a: "b" }, sent = { metadata, user: "me", safety_identifier: "s", prompt_cache_key: "k", max_output_tokens: 9, top_p: 0.5, tool_choice: "none", parallel_tool_calls: false, tools: [get_weather], reasoning: { effort: "none" } };
  const r = await responses.create({ model: "gpt-5", input: "Hi", temperature: 0.25, store: true, truncation: "auto", service_tier: "flex", ...sent, text: { verbosity: "low" } });
  for (const [key, value] of Object.entries({ ...sent, temperature: 0.25, reasoning: { effort: "none", summary: null }, store: false, truncation: "disabled", previous_response_id: null, background: false, model })) same(r[key], value, `${key} in the response`);
  same(r.text.format, { type: "text" }, "text.format in the response");
});

await group("errors", async () => {
  const of = (request, what) => errorOf(responses.create({ model, input: "Hi", ...request }), what);
  const user = (content) => [{ role: "user", content }];
  for (const [param, request] of Object.entries({
    temperature: { temperature: "hot" }, max_output_tokens: { max_output_tokens: -2 }, stream: { stream: "yes" }, top_logprobs: { top_logprobs: 21 }, "reasoning.effort": { reasoning: { effort: "much" } },
    input: { input: 7 }, "input[0]": { input: [7] }, "input[1].role": { input: [...user("Hi"), { role: "tool", content: "x" }] }, "input[0].content": { input: [{ role: "user" }] },
    "input[0].content[1].type": { input: user([{ type: "input_text", text: "a" }, { type: "b" }]) }, "input[0].content[0].text": { input: user([{ type: "input_text" }]) },
    "input[0].content[0]": { input: user([{ type: "input_image", image_url: "data:" }]) }, "input[0].type": { input: [{ type: "item_reference", id: "msg_1" }] },
    "input[0].name": { input: [{ type: "function_call", call_id: "c", arguments: "{}" }] }, "input[0].arguments": { input: [{ type: "function_call", call_id: "c", name: "f" }] }, "input[0].call_id": { input: [{ type: "function_call_output", output: "x" }] },
    tools: { tools: [{ type: "function" }] }, tool_choice: { tool_choice: { type: "web_search" } }, previous_response_id: { previous_response_id: "resp_1" }, conversation: { conversation: "conv_1" }, background: { background: true }, prompt: { prompt: { id: "p" } },
  })) {
    const e = await of(request, param);
    check(e instanceof OpenAI.BadRequestError, `${param}: BadRequestError, not ${e}`);
    same([e.status, e.type, e.param], [400, "invalid_request_error", param], `${param} is named`);
    check(e.message.includes(param), `${param} is in the sentence: ${e.message}`);
  }
  matches((await of({ previous_response_id: "resp_1" }, "stored")).message, /nothing is stored/, "nothing is stored, and it is said");
  const long = await of({ input: "word ".repeat(70000) }, "a long prompt");
  same([long.code, long.param], ["context_length_exceeded", "input"], "a long prompt");
  matches(long.message, /maximum context length is \d+ tokens.*reduce the length of the messages/, "in the words that clients look for");
  const seen = [], cut = await errorOf((async () => {
    for await (const e of await responses.create({ model, input: "word ".repeat(70000), stream: true })) seen.push(e);
  })(), "a long prompt, streamed"); // codex shortens its conversation when it is told in the stream
  same([seen.map((e) => e.type), seen[1]?.response.error.code, cut.code, cut.param], [["response.created", "response.failed"], "context_length_exceeded", "context_length_exceeded", "input"], "a long prompt, streamed");
  matches(cut.message, /maximum context length is \d+ tokens/, "in the same words");
  same((await errorOf(responses.retrieve("resp_1"), "a stored response")).status, 404, "no response is stored");
  const fine = await responses.create({ model, input: [{ type: "web_search_call", id: "ws_1", status: "completed" }, { type: "compaction", encrypted_content: "x" }, { role: "user", content: "Hi" }], nonsense: 1, stream_options: { include_obfuscation: false } });
  same(fine.status, "completed", "unknown items and fields are ignored");
});

await group("abort", async () => {
  const before = await server.metrics();
  const stream = await responses.create({ model, input: "Tell me a story.", max_output_tokens: 6000, ignore_eos: true, temperature: 1, stream: true });
  let n = 0;
  for await (const _ of stream) if (++n === 8) break; // the client closes the connection
  await until(async () => (await server.metrics()).tandem_num_requests_running === 0, "an answer whose client left ends");
  const after = await server.metrics();
  same(after['tandem_request_success_total{finished_reason="abort"}'] - before['tandem_request_success_total{finished_reason="abort"}'], 1, "it counts as aborted");
});

await group("an answer that fails", async () => {
  const hasty = await serve(tandem, ["--set", "request_timeout_ms=400"]);
  const client = new OpenAI({ baseURL: `${hasty.url}/v1`, apiKey: "none", maxRetries: 0 }).responses;
  const long = { model, input: "Tell me a story.", max_output_tokens: 8000, ignore_eos: true, temperature: 0 };
  same((await errorOf(client.create(long), "an answer that takes too long")).status, 504, "an answer that takes too long");
  const seen = [];
  const error = await errorOf((async () => {
    for await (const e of await client.create({ ...long, stream: true })) seen.push(e);
  })(), "a stream that takes too long");
  check(error instanceof OpenAI.APIError && /time/.test(error.message), `a stream that takes too long is APIError: ${error}`);
  const { type, response } = seen.at(-1);
  same([type, response.status, response.error.code], ["response.failed", "failed", "server_error"], "before it the response, which failed");
  check(response.usage.output_tokens > 0, "with its usage");
  same(await hasty.stop(), 0, "SIGTERM ends the server");
});

await server.stop();
finish();
