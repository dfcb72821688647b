// The SDKs with a Qwen 3.5 chat model of random weights (qwen_model.mjs): thoughts apart from content, thinking switched on and off, tool
// calls in the model's own form, histories with calls and results, streams equal to whole responses.
// Usage: node qwen.mjs TANDEM
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { makeQwen } from "./qwen_model.mjs";
import { check, errorOf, finish, group, matches, same, serve } from "./serve.mjs";

const [tandem] = process.argv.slice(2);
const server = await serve(tandem, ["-m", makeQwen(), "--ctx", "16384"]);
const openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: server.url, apiKey: "none", maxRetries: 0 });
const model = (await openai.models.list()).data[0].id, base = { model, temperature: 0, max_tokens: 256 };

const parameters = { type: "object", properties: { on: { type: "boolean" }, level: { enum: ["low", "high"] }, count: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["on", "level", "count"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "set_lamp", description: "Switches the lamp.", parameters } }];
const questions = ["Hello", "What is 3 + 4?", "Write a poem.", "Switch the lamp on.", "Sort 3, 1, 2.", "你好，你是谁？"];
const user = (content) => [{ role: "user", content }];

function checkArguments(x, what) {
  same([Object.keys(x).sort(), typeof x.on, ["low", "high"].includes(x.level), Number.isInteger(x.count)], [["count", "level", "on"], "boolean", true, true], what);
}

// Returns { reasoning, content, calls, finish, usage } of a stream of chat completions.
async function streamed(body) {
  const out = { reasoning: "", content: "", calls: [], finish: null, usage: null };
  let closed = false;
  for await (const { choices: [c], usage } of await openai.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } })) {
    if (usage) out.usage = usage;
    if (!c) continue;
    const { reasoning_content = "", content, tool_calls = [] } = c.delta;
    check(!(reasoning_content && closed), "no thought comes after content");
    closed ||= !!content || tool_calls.length > 0;
    out.reasoning += reasoning_content ?? "";
    out.content += content ?? "";
    for (const t of tool_calls) {
      out.calls[t.index] ??= { name: t.function.name, text: "" };
      out.calls[t.index].text += t.function.arguments ?? "";
    }
    out.finish = c.finish_reason ?? out.finish;
  }
  return out;
}

async function whole(body) {
  const r = await openai.chat.completions.create(body), m = r.choices[0].message;
  return { reasoning: m.reasoning_content ?? "", content: m.content ?? "", finish: r.choices[0].finish_reason, usage: r.usage,
    calls: (m.tool_calls ?? []).map((t) => ({ name: t.function.name, text: t.function.arguments })) };
}

const withoutCache = ({ usage, ...rest }) => ({ ...rest, usage: [usage.prompt_tokens, usage.completion_tokens] });

await group("thoughts", async () => {
  let thoughts = 0, contents = 0;
  for (const q of questions) {
    const body = { ...base, messages: user(q) }, a = await whole(body), b = await streamed(body);
    same(withoutCache(b), withoutCache(a), `${q}: the stream equals the whole response`);
    check(!/<\/?think>|<\|im_/.test(a.content + a.reasoning), `${q}: no marker is in the text`);
    thoughts += a.reasoning.length > 0;
    contents += a.content.length > 0;
    for (const off of [{ chat_template_kwargs: { enable_thinking: false } }, { reasoning_effort: "none" }]) {
      const c = await whole({ ...body, ...off });
      same(c.reasoning, "", `${q}: no thoughts with ${JSON.stringify(off)}`);
      check(c.usage.prompt_tokens > a.usage.prompt_tokens, `${q}: the prompt has an empty thought with ${JSON.stringify(off)}`);
    }
  }
  check(thoughts > 0 && contents > 0, `${thoughts} of ${questions.length} have thoughts, ${contents} content`);
});

await group("tool calls", async () => {
  for (const q of questions)
    for (const kwargs of [{}, { chat_template_kwargs: { enable_thinking: false } }]) {
      const body = { ...base, messages: user(q), tools, tool_choice: "required", parallel_tool_calls: false, ...kwargs };
      const a = await whole(body), b = await streamed(body);
      same(withoutCache(b), withoutCache(a), `${q}: the streamed call equals the whole one`);
      same([a.finish, a.calls.map((c) => c.name)], ["tool_calls", ["set_lamp"]], `${q}: one call`);
      if (a.calls.length) checkArguments(JSON.parse(a.calls[0].text), `${q}: arguments ${a.calls[0].text}`);
    }
  const none = await whole({ ...base, messages: user("Hello"), tools, tool_choice: "none" });
  same(none.calls, [], "tool_choice none makes no call");
});

await group("history", async () => {
  const call = { id: "call_1", type: "function", function: { name: "set_lamp", arguments: '{"on":true,"level":"low","count":1}' } };
  const messages = [{ role: "system", content: "Be brief." }, ...user("Switch it on."), { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "call_1", content: "done" }, { role: "assistant", content: "It is on.", reasoning_content: "The tool said so." }, ...user("Thanks.")];
  const a = await whole({ ...base, messages, tools }), b = await streamed({ ...base, messages, tools });
  same(withoutCache(b), withoutCache(a), "a history with a call and its result");
  const error = await errorOf(openai.chat.completions.create({ ...base, messages: [{ role: "nobody", content: "x" }] }), "an unknown role");
  same(error.status, 400, "an unknown role is refused");
});

await group("structured output", async () => {
  const body = { ...base, messages: user("Hello"), response_format: { type: "json_schema", json_schema: { name: "lamp", strict: true, schema: parameters } } };
  const a = await whole(body), b = await streamed(body);
  same(withoutCache(b), withoutCache(a), "the streamed object equals the whole one");
  checkArguments(JSON.parse(a.content), `the object ${a.content}`);
});

await group("messages", async () => {
  const request = { model, max_tokens: 256, temperature: 0, messages: user("Switch the lamp on."), tool_choice: { type: "any", disable_parallel_tool_use: true },
    tools: [{ name: "set_lamp", description: "Switches the lamp.", input_schema: parameters }] };
  const r = await anthropic.messages.create(request), s = await anthropic.messages.stream(request).finalMessage();
  const calls = (x) => x.content.filter((c) => c.type === "tool_use").map(({ name, input }) => ({ name, input }));
  same([r.stop_reason, calls(r).length], ["tool_use", 1], "one call");
  same(calls(s), calls(r), "the streamed call equals the whole one");
  if (calls(r).length) checkArguments(calls(r)[0].input, "input of the call");
});

await group("responses", async () => {
  const r = await openai.responses.create({ model, temperature: 0, max_output_tokens: 256, input: "Switch the lamp on.", tool_choice: "required", parallel_tool_calls: false,
    tools: [{ type: "function", name: "set_lamp", description: "Switches the lamp.", parameters, strict: true }] });
  const calls = r.output.filter((o) => o.type === "function_call");
  same([r.status, calls.map((c) => c.name)], ["completed", ["set_lamp"]], "one call");
  if (calls.length) checkArguments(JSON.parse(calls[0].arguments), "arguments of the call");
});

const props = await (await fetch(`${server.url}/props`)).json();
matches(JSON.stringify(props), /qwen|Qwen|im_start/, "the server names the format");
same(await server.stop(), 0, "SIGTERM ends the server");
finish();
