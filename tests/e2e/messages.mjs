// Anthropic's client from npm, its version as in tests/package.json, against `tandem serve` with nano, or the model that
// TANDEM_MODEL names. Usage: node messages.mjs TANDEM
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";
import { check, CLEVER, errorOf, finish, group, matches, MODEL, post, same, serve, stopwatch, TOOLS, until } from "../server/serve.mjs";

const tandem = process.argv[2];
const server = await serve(tandem);
const clientOf = (s, more) => new Anthropic({ baseURL: s.url, apiKey: "none", maxRetries: 0, timeout: 60000, ...more });
const client = clientOf(server);
const model = MODEL, user = (content) => [{ role: "user", content }];
const toolOf = ({ function: f }) => ({ name: f.name, description: f.description, input_schema: f.parameters });
const tools = [TOOLS.get_weather, TOOLS.get_time, TOOLS.set_timer].map(toolOf);
const base = { model, max_tokens: 400, temperature: 0 };

// --- one answer as it was told whole, and as the events of its stream tell it
const bare = ({ content, ...m }) => [m.type, m.role, m.model, m.stop_reason, m.stop_sequence, m.usage.output_tokens, m.usage.output_tokens_details,
  m.usage.input_tokens + m.usage.cache_read_input_tokens, content.map(({ id, ...block }) => block)];

async function joined(events) {
  let message, block, json, over;
  for await (const e of events) {
    check(!over, "nothing comes behind message_stop");
    if (e.type === "message_start") {
      check(!message && e.message.content.length === 0, "one message_start");
      message = e.message;
    } else if (e.type === "content_block_start") {
      same([e.index, block], [message.content.length, undefined], "blocks come one after another");
      block = { ...e.content_block };
      json = "";
    } else if (e.type === "content_block_delta") {
      same(e.index, message.content.length, "a delta of the open block");
      const { type, ...d } = e.delta;
      same(type, { text: "text_delta", tool_use: "input_json_delta", thinking: d.signature ? "signature_delta" : "thinking_delta" }[block.type], "a delta of its kind");
      if (type === "input_json_delta") json += d.partial_json;
      else for (const [key, value] of Object.entries(d)) block[key] += value;
    } else if (e.type === "content_block_stop") {
      if (block.type === "tool_use") block.input = JSON.parse(json);
      message.content.push(block);
      block = undefined;
    } else if (e.type === "message_delta") {
      same(block, undefined, "all blocks have ended");
      Object.assign(message, e.delta, { usage: { ...message.usage, ...e.usage } });
    } else if (e.type === "message_stop") over = true;
    else check(e.type === "ping", `an event of the type ${e.type}`);
  }
  check(over, "there is a message_stop");
  return message;
}

async function streamEqualsWhole(what, request) {
  const ask = { ...base, ...request }, whole = await client.messages.create(ask);
  same(bare(await joined(await client.messages.create({ ...ask, stream: true }))), bare(whole), `${what}: the stream is the whole`);
  same(bare(await client.messages.stream(ask).finalMessage()), bare(whole), `${what}: so is what the client's own helper makes of it`);
  matches(whole.id, /^msg_\w{24}$/, `${what}: an id`);
  same([whole.type, whole.role, whole.model], ["message", "assistant", model], `${what}: the head`);
  const { input_tokens: count } = await client.messages.countTokens({ ...request, model });
  same(count, whole.usage.input_tokens + whole.usage.cache_read_input_tokens, `${what}: count_tokens`);
  return whole;
}
const textOf = (m) => m.content.filter((b) => b.type === "text").map((b) => b.text).join("");

await group("stream equals whole", async () => {
  const sum = await streamEqualsWhole("a sum", { messages: user("What is 27 plus 58?") });
  matches(textOf(sum), /85/, "27 plus 58");
  same([sum.stop_reason, sum.stop_sequence, sum.content.length], ["end_turn", null, 1], "a sum ends by itself");
  await streamEqualsWhole("a story", { messages: user("Tell me a short story about a fox."), temperature: 1, seed: 5 });
  await streamEqualsWhole("Chinese", { messages: user("你好") });
  await streamEqualsWhole("bytes that are no text", { messages: user("Hi"), temperature: 30, seed: 3, max_tokens: 200, ignore_eos: true });
  await streamEqualsWhole("a system text", { system: "Be brief.", messages: user("Who are you?") });
  await streamEqualsWhole("blocks", { system: [{ type: "text", text: "Be brief.", cache_control: { type: "ephemeral" } }], messages: user([{ type: "text", text: "What is 2" }, { type: "text", text: " plus 3?", cache_control: { type: "ephemeral" } }]) });
  await streamEqualsWhole("a system role", { messages: [...user("Hi"), { role: "system", content: "Be brief." }] });
  const cut = await streamEqualsWhole("cut short", { messages: user("Tell me a story."), max_tokens: 5 });
  same([cut.stop_reason, cut.usage.output_tokens], ["max_tokens", 5], "cut short");
  const huge = await streamEqualsWhole("max_tokens over the context", { messages: user("Hi"), max_tokens: 2000000000 });
  same(huge.stop_reason, "end_turn", "max_tokens is cut to the context");
  const none = await streamEqualsWhole("no tokens", { messages: user("Hi"), max_tokens: 0 });
  same([none.content, none.usage.output_tokens], [[], 0], "no tokens");
});

await group("stop sequences", async () => {
  const messages = user("What is 27 plus 58?"), all = textOf(await client.messages.create({ ...base, messages }));
  for (const stop_sequences of [["8"], ["zebra", "="], [all.slice(-3)], [all.slice(1, 6), all.slice(3, 8)]]) {
    const r = await streamEqualsWhole(`stop ${JSON.stringify(stop_sequences)}`, { messages, stop_sequences });
    const ends = stop_sequences.filter((s) => all.includes(s)).map((s) => [all.indexOf(s) + s.length, s]).sort((a, b) => a[0] - b[0]);
    same([textOf(r), r.stop_reason, r.stop_sequence], [all.slice(0, ends[0][0] - ends[0][1].length), "stop_sequence", ends[0][1]], `stop ${JSON.stringify(stop_sequences)}`);
  }
  const not = await streamEqualsWhole("a stop sequence that does not come", { messages, stop_sequences: ["zebra"] });
  same([textOf(not), not.stop_reason, not.stop_sequence], [all, "end_turn", null], "a stop sequence that does not come");
});

await group("tools", async () => {
  const ask = { tools, messages: user("What is the weather in Paris?") };
  const one = await streamEqualsWhole("a call", ask), call = one.content[0];
  same([one.stop_reason, call.type, call.name, call.input], ["tool_use", "tool_use", CLEVER ? "get_weather" : call.name, { city: "Paris" }], "a call");
  matches(call.id, /^toolu_\w{24}$/, "a call has an id");
  const answered = (block) => ({ ...ask, messages: [...ask.messages, { role: "assistant", content: one.content }, { role: "user", content: [block] }] });
  const told = await streamEqualsWhole("its answer", answered({ type: "tool_result", tool_use_id: call.id, content: '{"sky":"sunny","temp":21}' }));
  matches(textOf(told), CLEVER ? /^It is sunny in Paris at 21 degrees\.$/ : /in Paris/, "its answer");
  same(told.stop_reason, "end_turn", "its answer ends");
  const inBlocks = await client.messages.create({ ...base, ...answered({ type: "tool_result", tool_use_id: call.id, content: [{ type: "text", text: '{"sky":"sunny",' }, { type: "text", text: '"temp":21}' }] }) });
  same(textOf(inBlocks), textOf(told), "its answer in blocks");
  const seen = await client.messages.create({ ...base, ...answered({ type: "tool_result", tool_use_id: call.id, content: [{ type: "image", source: { type: "base64", media_type: "image/png", data: "" } }] }) });
  check(seen.usage.output_tokens > 0, "its answer as an image");
  const after = answered({ type: "tool_result", tool_use_id: call.id, content: '{"sky":"sunny","temp":21}' });
  after.messages.splice(2, 0, { role: "assistant", content: "I look." });
  check((await client.messages.create({ ...base, ...after })).usage.output_tokens > 0, "its answer behind a text");
  const failed = await streamEqualsWhole("an answer that is an error", answered({ type: "tool_result", tool_use_id: call.id, is_error: true, content: "no such city" }));
  check(failed.usage.input_tokens + failed.usage.cache_read_input_tokens > 0, "an answer that is an error");
  const pair = { ...ask, messages: user("What is the weather in Paris and in Oslo?") };
  const two = await streamEqualsWhole("two calls", pair);
  same(two.content.map((b) => b.input), [{ city: "Paris" }, { city: "Oslo" }], "two calls at once");
  check(two.content[0].id !== two.content[1].id, "two calls have two ids");
  const single = await streamEqualsWhole("one call alone", { ...pair, tool_choice: { type: "auto", disable_parallel_tool_use: true } });
  same([single.content.length, single.stop_reason], [1, "tool_use"], "disable_parallel_tool_use");
  const none = await streamEqualsWhole("tool_choice none", { ...ask, tool_choice: { type: "none" } });
  check(none.content.every((b) => b.type === "text"), "tool_choice none");
  for (const messages of [user("Hi"), user("What is 2 plus 3?")]) {
    const any = await streamEqualsWhole("tool_choice any", { tools, messages, tool_choice: { type: "any", disable_parallel_tool_use: true } });
    same([any.content.map((b) => b.type), any.stop_reason, tools.some((x) => x.name === any.content[0].name)], [["tool_use"], "tool_use", true], "tool_choice any");
    const named = await streamEqualsWhole("tool_choice tool", { tools, messages, tool_choice: { type: "tool", name: "set_timer" } });
    same([named.content.map((b) => b.name), typeof named.content[0].input.minutes], [["set_timer"], "number"], "tool_choice tool");
  }
  const theirs = await streamEqualsWhole("tools of Anthropic's own", { ...ask, tools: [{ type: "web_search_20250305", name: "web_search", max_uses: 2 }, ...tools.map((t) => ({ ...t, type: "custom", strict: true, cache_control: { type: "ephemeral" } }))] });
  same(bare(theirs).slice(-2), bare(one).slice(-2), "tools of Anthropic's own are ignored");

  const asked = [];
  const weather = { ...tools[0], run: (input) => (asked.push(input), JSON.stringify({ sky: "sunny", temp: 21 })) };
  const timer = { ...tools[2], run: () => "started" };
  for (const stream of [false, true]) {
    const runner = client.beta.messages.toolRunner({ ...base, stream, tools: [weather, timer], messages: ask.messages });
    same(textOf(await runner.runUntilDone()), textOf(told), `the client's own loop${stream ? ", streamed" : ""}`);
  }
  same(asked, [{ city: "Paris" }, { city: "Paris" }], "the loop ran the tool");
});

await group("thinking", async () => {
  const messages = user("Tom has 12 apples and buys 7 more. How many apples does Tom have?"), thinking = { type: "enabled", budget_tokens: 1024 };
  const plain = await streamEqualsWhole("not thinking", { messages, thinking: { type: "disabled" } });
  same([plain.content.length, plain.usage.output_tokens_details], [1, { thinking_tokens: 0 }], "not thinking");
  const think = await streamEqualsWhole("thinking", { messages, thinking });
  same(think.content.map((b) => b.type), ["thinking", "text"], "a thought, then the answer");
  const [thought, answer] = think.content;
  matches(thought.thinking, /12/, "there is a thought");
  matches(thought.signature, /^\w+=*$/, "with a signature");
  matches(answer.text, /19/, "there is an answer");
  check(!/channel|thought\n/.test(thought.thinking + answer.text), "no markup is left");
  const used = think.usage.output_tokens_details.thinking_tokens;
  check(used > 0 && used < think.usage.output_tokens, `tokens of the thought are counted: ${used}`);
  same(bare(await client.messages.create({ ...base, messages, thinking: { type: "adaptive" } })), bare(think), "adaptive is the same");
  const call = await streamEqualsWhole("a thought before a call", { messages: user("What is the weather in Paris?"), tools, thinking });
  same(call.content.map((b) => b.type), ["thinking", "tool_use"], "a thought before a call");
  const back = [...user("What is the weather in Paris?"), { role: "assistant", content: [...call.content, { type: "redacted_thinking", data: "x" }] }, ...user([{ type: "tool_result", tool_use_id: call.content[1].id, content: '{"sky":"sunny","temp":21}' }])];
  const told = await streamEqualsWhole("a thought sent back", { messages: back, tools, thinking });
  matches(textOf(told), CLEVER ? /sunny/ : /in Paris/, "a thought sent back");
});

await group("structured output", async () => {
  const schema = { type: "object", properties: { sum: { type: "integer" }, sure: { type: "boolean" } }, required: ["sum", "sure"], additionalProperties: false };
  const ask = { messages: user("What is 27 plus 58?"), output_config: { format: { type: "json_schema", schema } } };
  for (const thinking of [{ type: "disabled" }, { type: "adaptive" }]) {
    const r = await streamEqualsWhole("a schema", { ...ask, thinking }), { sum, sure } = JSON.parse(textOf(r));
    check(Number.isInteger(sum) && typeof sure === "boolean", `a schema: ${textOf(r)}`);
    same(r.content.map((b) => b.type), thinking.type === "adaptive" ? ["thinking", "text"] : ["text"], "a schema begins behind the thought");
  }
  const parsed = await client.messages.parse({ ...base, ...ask, output_config: { format: jsonSchemaOutputFormat(schema) } });
  same(Object.keys(parsed.parsed_output), ["sum", "sure"], "the client parses it");
  const cut = await streamEqualsWhole("a schema cut short", { ...ask, max_tokens: 12 });
  check(JSON.parse(textOf(cut)), "a schema that is cut short is JSON");
  const e = await errorOf(client.messages.create({ ...base, ...ask, output_config: { format: { type: "json_schema" } } }), "no schema");
  matches(e.message, /output_config.format/, "no schema");
});

await group("as agents send it", async () => {
  const agent = (n, turn) => ({
    ...base, stream: true, max_tokens: 32000, thinking: { type: "adaptive" }, metadata: { user_id: "x" }, context_management: { edits: [] }, output_config: { effort: "high" },
    system: [{ type: "text", text: `x-anthropic-billing-header: cc_version=2.1.${n}; cch=${n};` }, { type: "text", text: "You are a coding agent. ".repeat(20), cache_control: { type: "ephemeral" } }],
    tools, messages: [...user([{ type: "text", text: "<system-reminder>Be kind.</system-reminder>" }, { type: "text", text: "What is 2 plus 3?" }]), ...turn],
  });
  const first = await client.beta.messages.stream({ ...agent(1, []), betas: ["context-management-2025-06-27"] }).finalMessage();
  const next = await client.beta.messages.stream({ ...agent(2, [{ role: "assistant", content: first.content }, ...user("And 4 more?")]), betas: ["a", "b"] }).finalMessage();
  // Qwen's prompts begin with the tools, which were sent before.
  const { cache_read_input_tokens: found, input_tokens: fresh } = first.usage;
  check(found < (CLEVER ? 16 : fresh + found - 100), `the first turn finds nothing of the system text in the cache: ${JSON.stringify(first.usage)}`);
  check(next.usage.cache_read_input_tokens > 0.7 * (first.usage.input_tokens + first.usage.cache_read_input_tokens), `the next turn does, whatever its billing line says: ${JSON.stringify(next.usage)}`);
  same((await fetch(server.url, { method: "HEAD" })).status, 200, "HEAD /");
  same((await client.models.list()).data.map((m) => m.id), [model], "the client's list of models");
});

await group("errors", async () => {
  const of = (request, what) => errorOf(client.messages.create({ ...base, messages: user("Hi"), ...request }), what);
  for (const [param, value] of Object.entries({
    temperature: "hot", top_p: 2, top_k: 1.5, max_tokens: -2, stop_sequences: [""], messages: [], tools: "f", stream: "yes", system: 7, thinking: { type: "much" }, tool_choice: { type: "some" },
  })) {
    const e = await of({ [param]: value }, param);
    check(e instanceof Anthropic.BadRequestError, `${param}: BadRequestError, not ${e}`);
    same([e.status, e.type, Object.keys(e.error), e.error.type], [400, "invalid_request_error", ["type", "error"], "error"], `${param}: the shape`);
    matches(e.message, new RegExp(param), `${param} is in the sentence`);
    matches(e.requestID, /^req_\w+$/, `${param}: the request's id`);
  }
  matches((await of({ max_tokens: undefined }, "no max_tokens")).message, /max_tokens/, "max_tokens is required");
  const long = await of({ messages: user("word ".repeat(70000)) }, "a long prompt");
  check(long instanceof Anthropic.BadRequestError, `a long prompt: ${long}`);
  const [, n, most] = /prompt is too long: (\d+) tokens > (\d+) maximum/.exec(long.message) ?? [];
  check(Number(n) > Number(most) && Number(most) > 1000, `a long prompt, in the words that clients look for: ${long.message}`);
  same((await client.messages.countTokens({ model, messages: user("word ".repeat(70000)) })).input_tokens, Number(n), "it can be counted");
  const image = await of({ messages: user([{ type: "image", source: { type: "base64", media_type: "image/png", data: "" } }]) }, "an image");
  matches(image.message, /text only/, "an image");
  matches((await of({ messages: [...user("Hi"), { role: "assistant", content: "{" }] }, "prefill")).message, /prefill/, "an answer that is begun");
  const orphan = await of({ messages: user([{ type: "tool_result", tool_use_id: "toolu_1", content: "" }]) }, "an answer to no call");
  matches(orphan.message, /messages\[0\].content\[0\].tool_use_id/, "an answer to no call");
  check((await errorOf(client.post("/v1/messages/nothing", { body: {} }), "no such path")) instanceof Anthropic.NotFoundError, "a path that is not there");
  for (const body of ["", "{", "[]", "\xff"]) {
    const r = await fetch(`${server.url}/v1/messages`, { method: "POST", body: Buffer.from(body, "latin1") }), e = await r.json();
    same([r.status, e.type, e.error?.type], [400, "error", "invalid_request_error"], `a body of ${JSON.stringify(body)}`);
  }
  const big = await new Promise((done) => {
    const q = request(`${server.url}/v1/messages`, { method: "POST", headers: { "content-length": 65 << 20 } }, (r) => {
      let text = "";
      r.on("data", (d) => (text += d)).on("end", () => (q.destroy(), done({ status: r.statusCode, ...JSON.parse(text) })));
    }).on("error", () => {});
    q.flushHeaders();
  });
  same([big.status, big.type, big.error.type], [413, "error", "request_too_large"], "a body that is too large");
  const fine = await post(server.url, "/v1/messages?beta=true", { model: "claude-opus-5", max_tokens: 9, messages: user("Hi"), nonsense: [1] }, { headers: { "x-request-id": "my-own-7" } });
  same([fine.status, fine.headers.get("request-id")], [200, "my-own-7"], "unknown fields are ignored, a query does no harm, the id is told");
});

await group("keys", async () => {
  const dir = mkdtempSync(join(tmpdir(), "tandem-"));
  process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
  const keys = join(dir, "keys"), key = execFileSync(tandem, ["key", "--file", keys, "alice"], { encoding: "utf8" }).trim().split(/\s+/).pop();
  const locked = await serve(tandem, ["--api-key-file", keys]), ask = { ...base, messages: user("Hi") };
  for (const more of [{ apiKey: "wrong" }, { apiKey: null, authToken: "wrong" }]) {
    const e = await errorOf(clientOf(locked, more).messages.create(ask), "a wrong key");
    check(e instanceof Anthropic.AuthenticationError && e.type === "authentication_error", `a wrong key is AuthenticationError: ${e}`);
  }
  for (const more of [{ apiKey: key }, { apiKey: null, authToken: key }])
    same((await clientOf(locked, more).messages.create(ask)).type, "message", "the right key");
  await locked.stop();
});

await group("429 and 529, then success", async () => {
  const small = await serve(tandem, ["--max-lanes", "1", "--ctx", "65536", "--set", "queue_max=1", "--set", "queue_timeout_ms=2000"]);
  const hasty = clientOf(small), patient = clientOf(small, { maxRetries: 8 }), quit = new AbortController();
  const long = { ...base, messages: user("Tell me a story."), max_tokens: 60000, ignore_eos: true, speculative: "off" }, short = { ...base, messages: user("Hi") };
  const busy = await hasty.messages.create({ ...long, stream: true }, { signal: quit.signal });
  const stale = errorOf(hasty.messages.create(long), "one that waits too long");
  await until(async () => (await small.metrics()).tandem_num_requests_waiting === 1, "one answer waits");
  const watch = stopwatch(), full = await errorOf(hasty.messages.create(short), "the queue is full"), took = watch.ms();
  check(full instanceof Anthropic.RateLimitError && full.type === "rate_limit_error", `a full queue is RateLimitError: ${full}`);
  matches(full.headers?.get("retry-after"), /^[1-9]\d*$/, "Retry-After of a full queue");
  watch.inTime(took, 100, "and is told at once");
  const late = await stale;
  check(late instanceof Anthropic.OverloadedError && late.type === "overloaded_error", `one that waits too long is OverloadedError: ${late}`);
  same([late.status, /^[1-9]\d*$/.test(late.headers?.get("retry-after"))], [529, true], "529 and Retry-After");
  const again = patient.messages.create(short);
  setTimeout(() => quit.abort(), 800);
  same((await again).stop_reason, "end_turn", "asked again, answered");
  for await (const _ of busy) break;
  await small.stop();
});

await group("abort", async () => {
  const before = await server.metrics();
  const long = { ...base, messages: user("Tell me a story."), max_tokens: 7000, ignore_eos: true };
  const stream = await client.messages.create({ ...long, stream: true });
  let n = 0;
  for await (const _ of stream) if (++n === 5) break;
  await until(async () => (await server.metrics()).tandem_num_requests_running === 0, "an answer whose client left ends");
  const quit = new AbortController(), waiting = client.messages.create(long, { signal: quit.signal });
  until(async () => (await server.metrics()).tandem_num_requests_running === 1, "an answer is written").then(() => quit.abort());
  check((await errorOf(waiting, "aborted")) instanceof Anthropic.APIUserAbortError, "an aborted request");
  await until(async () => (await server.metrics()).tandem_num_requests_running === 0, "an answer whose client left ends");
  const after = await server.metrics(), name = 'tandem_request_success_total{finished_reason="abort"}';
  same(after[name] - before[name], 2, "both count as aborted");
});

await group("an answer that fails", async () => {
  const hasty = await serve(tandem, ["--set", "request_timeout_ms=400"]), long = { ...base, messages: user("Tell me a story."), max_tokens: 8000, ignore_eos: true };
  const whole = await errorOf(clientOf(hasty).messages.create(long), "an answer that takes too long");
  same([whole.status, whole.type, whole.error.usage.output_tokens > 0], [504, "timeout_error", true], "an answer that takes too long, with its usage");
  let pieces = 0, used = 0, error;
  try {
    for await (const e of await clientOf(hasty).messages.create({ ...long, stream: true })) {
      pieces += e.type === "content_block_delta";
      used = e.usage?.output_tokens ?? used;
    }
  } catch (e) {
    error = e;
  }
  check(pieces > 3 && used > 3, `what was made was told: ${pieces} pieces, ${used} tokens`);
  check(error instanceof Anthropic.APIError && error.type === "timeout_error", `a stream that takes too long is APIError: ${error}`);
  await hasty.stop();
});

same(await server.stop(), 0, "SIGTERM ends the server");
finish();
