// The requests of coding agents in tests/golden/agents (tests/all/record.mjs writes these), sent to `tandem serve` with nano, with
// nano-qwen and with a Qwen model of random weights: each request is accepted, its stream has the shape that its API promises, and the same request
// without a stream gets the same answer. nano must also answer the question, and nano-qwen
// answer with words.
// Usage: node agents.mjs TANDEM
import { readdirSync, readFileSync } from "node:fs";
import { makeQwen } from "./qwen_model.mjs";
import { check, finish, group, matches, same, serve } from "./serve.mjs";

const [tandem] = process.argv.slice(2);
const dir = new URL("../golden/agents/", import.meta.url);
const fixtures = readdirSync(dir).filter((f) => f.endsWith(".json")).map((f) => JSON.parse(readFileSync(new URL(f, dir), "utf8")));

// [{event, data}] of a stream; data is an object, or "[DONE]". Pings, which come when an answer takes long, are left out.
const isPing = (block) => block === ": ping" || block.startsWith("event: ping\n");
function eventsOf(text, what) {
  return text.split("\n\n").slice(0, -1).filter((block) => !isPing(block)).map((block) => {
    const at = block.lastIndexOf("data: "), event = /^event: (\S+)$/m.exec(block)?.[1], data = block.slice(at + 6);
    check(at >= 0 && !data.includes("\n"), `${what}: an event has one line of data: ${block.slice(0, 200)}`);
    return { event, data: data === "[DONE]" ? data : JSON.parse(data) };
  });
}

// Each returns {text, finish, usage: [in, out]} of a stream, or of a whole answer.
const APIS = {
  "/v1/chat/completions": {
    streamed(events, body, what) {
      const chunks = events.slice(0, -1).map((e) => e.data), choices = chunks.flatMap((c) => c.choices), ends = choices.filter((c) => c.finish_reason);
      same(events.at(-1).data, "[DONE]", `${what}: the last event`);
      same(new Set(chunks.map((c) => c.object)), new Set(["chat.completion.chunk"]), `${what}: chunks`);
      same(new Set(chunks.map((c) => c.id)).size, 1, `${what}: one id`);
      same(choices[0].delta.role, "assistant", `${what}: the first delta`);
      same(ends.length, 1, `${what}: one finish reason`);
      if (body.stream_options?.include_usage) same(chunks.at(-1).choices, [], `${what}: the usage comes last`);
      const { prompt_tokens, completion_tokens } = chunks.at(-1).usage ?? {};
      return { text: choices.map((c) => c.delta.content ?? "").join(""), finish: ends[0]?.finish_reason, usage: [prompt_tokens, completion_tokens] };
    },
    whole: (r) => ({ text: r.choices[0].message.content ?? "", finish: r.choices[0].finish_reason, usage: [r.usage.prompt_tokens, r.usage.completion_tokens] }),
    finishes: /^(stop|tool_calls)$/,
  },
  "/v1/responses": {
    streamed(events, body, what) {
      const datas = events.map((e) => e.data), count = (type) => datas.filter((d) => d.type === type).length;
      same(events.map((e) => e.event), datas.map((d) => d.type), `${what}: events have their types as names`);
      same(datas.map((d) => d.sequence_number), datas.map((d, i) => i), `${what}: events are numbered`);
      same([datas[0].type, datas.at(-1).type], ["response.created", "response.completed"], `${what}: the first and the last event`);
      check(count("response.output_item.added") > 0, `${what}: there is an item`);
      same(count("response.output_item.done"), count("response.output_item.added"), `${what}: each item ends`);
      const text = datas.filter((d) => d.type === "response.output_text.delta").map((d) => d.delta).join(""), whole = this.whole(datas.at(-1).response);
      same(whole.text, text, `${what}: the deltas are the text at the end`);
      return whole;
    },
    whole: (r) => ({ text: r.output.flatMap((o) => o.content ?? []).map((c) => c.text ?? "").join(""), finish: r.status, usage: [r.usage.input_tokens, r.usage.output_tokens] }),
    finishes: /^completed$/,
  },
  "/v1/messages": {
    streamed(events, body, what) {
      const datas = events.map((e) => e.data), of = (type) => datas.filter((d) => d.type === type), end = of("message_delta")[0];
      same(events.map((e) => e.event), datas.map((d) => d.type), `${what}: events have their types as names`);
      same([datas[0].type, datas.at(-1).type], ["message_start", "message_stop"], `${what}: the first and the last event`);
      same(of("content_block_start").map((d) => d.index), of("content_block_start").map((d, i) => i), `${what}: blocks are numbered`);
      same(of("content_block_stop").map((d) => d.index), of("content_block_start").map((d) => d.index), `${what}: each block ends`);
      same(of("message_delta").length, 1, `${what}: one stop reason`);
      const text = of("content_block_delta").map((d) => d.delta.text ?? "").join(""), { usage } = datas[0].message;
      return { text, finish: end?.delta.stop_reason, usage: [usage.input_tokens + (usage.cache_read_input_tokens ?? 0), end?.usage.output_tokens] };
    },
    whole: (r) => ({ text: r.content.map((c) => c.text ?? "").join(""), finish: r.stop_reason, usage: [r.usage.input_tokens + (r.usage.cache_read_input_tokens ?? 0), r.usage.output_tokens] }),
    finishes: /^(end_turn|tool_use)$/,
  },
};

async function replay(server, fixture, { method, path, headers, body }, what) {
  const api = APIS[path.split("?")[0]], send = (x) => fetch(server.url + path, { method, headers, body: JSON.stringify(x) });
  const r = await send(body), text = await r.text(), expected = server.expected;
  if (!same([r.status, r.headers.get("content-type")?.split(";")[0]], [200, "text/event-stream"], `${what}: ${text.slice(0, 200)}`)) return;
  const got = api.streamed(eventsOf(text, what), body, what);
  matches(got.finish, api.finishes, `${what}: how it ends`);
  matches(got.text, expected, `${what}: the answer to "${fixture.question}"`);
  check(got.usage.every((n) => n > 0), `${what}: usage ${got.usage}`);
  const { stream, stream_options, ...plain } = body, again = await send(plain);
  same(again.status, 200, `${what}: the same request, whole`);
  same(api.whole(await again.json()), got, `${what}: the same answer, whole`);
  console.log(`${what.padEnd(14)} ${path.padEnd(24)} ${(JSON.stringify(body).length / 1024).toFixed(0)} KB, ${body.tools?.length ?? 0} tools, ${got.usage[0]} tokens, ${got.finish}: ${JSON.stringify(got.text.slice(-40))}`);
}

async function replayAll(name, flags, expected, greedy) {
  const server = Object.assign(await serve(tandem, [...flags, "--ctx", "65536"]), { expected });
  console.log(`${name}:`);
  for (const f of fixtures)
    for (const [i, q] of f.requests.entries())
      await group(f.agent, () => replay(server, f, greedy ? { ...q, body: { ...q.body, temperature: 0 } } : q, `${f.agent} ${i + 1}`));
  const cpu = server.cpu();
  same(await server.stop(), 0, "SIGTERM ends the server");
  console.log(`${cpu.toFixed(0)} s of the server's CPU time`);
}

check(fixtures.length >= 4, `there are fixtures: ${fixtures.map((f) => f.agent)}`);
await replayAll("nano", [], /The answer is 85\.$/, false);
await replayAll("nano-qwen", ["-m", "nano-qwen"], /./, true);
await replayAll("Qwen", ["-m", makeQwen()], /^/, true);
finish();
