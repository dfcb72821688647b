// Mutated bodies and raw garbage, while somebody else's answers go on: no crash, no hang, none of the other's text, and the
// answers stay what they are. Meant for a build with sanitizers. Usage: node hostile.mjs TANDEM [REQUESTS]
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { check, finish, post, random, same, serve, talk, TOOLS } from "./serve.mjs";

const [tandem, count = "10000", seed = "1"] = process.argv.slice(2), total = Number(count), pick = random(Number(seed));
const dir = mkdtempSync(join(tmpdir(), "tandem-")), keys = join(dir, "keys");
process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
const keyOf = (name) => execFileSync(tandem, ["key", "--file", keys, name], { encoding: "utf8" }).trim();
const victim = keyOf("victim"), attacker = keyOf("attacker");
const server = await serve(tandem, ["--ctx", "1024", "--set", "request_timeout_ms=3000", "--set", "queue_max=16", "--api-key-file", keys]);

const SECRET = "QZXJVKWQ"; // no answer of the model has it
const HANG_MS = 30000;
const STATUS = new Set([200, 400, 401, 404, 405, 408, 411, 413, 414, 415, 417, 422, 426, 429, 431, 500, 501, 503, 504, 505, 529]);

// --- the victim
const secret = { messages: [{ role: "user", content: `My name is ${SECRET}. What is 27 plus 58?` }], temperature: 0, max_tokens: 40 };
const ask = async () => {
  const r = await post(server.url, "/v1/chat/completions", secret, { headers: { authorization: `Bearer ${victim}` } });
  return r.status === 200 ? (await r.json()).choices[0].message.content : r.status;
};
let answer = await ask();
for (let i = 0; i < 20 && answer === 504; i++) answer = await ask(); // the first may be slow
check(typeof answer === "string", `the victim's answer: ${answer}`);
let attacked = true, answers = 0;
const living = (async () => {
  while (attacked) {
    const now = await ask();
    if (now === 429 || now === 504) continue; // the time limit is short, and a sanitizer slow
    same(now, answer, "the victim's answer stays");
    answers++;
  }
})();

// --- bodies
const messages = [{ role: "user", content: "What is 27 plus 58? 你好 🦙" }];
const call = { id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city":"Paris"}' } };
const seeds = [
  ["/v1/chat/completions", { model: "nano", messages, temperature: 0.5, top_p: 0.9, top_k: 40, min_p: 0.1, seed: 7, max_tokens: 8, stop: ["x", "yz"], n: 2 }],
  ["/v1/chat/completions", { messages, stream: true, stream_options: { include_usage: true }, max_completion_tokens: 8, logprobs: true, top_logprobs: 3, logit_bias: { 5: -1.5 } }],
  ["/v1/chat/completions", { messages: [{ role: "system", content: [{ type: "text", text: "a" }] }, ...messages, { role: "assistant", content: null, tool_calls: [call] }, { role: "tool", tool_call_id: "call_1", content: "{\"sky\":\"sunny\"}" }], tools: Object.values(TOOLS), tool_choice: "auto", max_tokens: 8 }],
  ["/v1/chat/completions", { messages, reasoning_effort: "low", chat_template_kwargs: { enable_thinking: true }, speculative: { method: "tree", draft_max: 4, tree_budget: 8 }, presence_penalty: 1, frequency_penalty: -1, repeat_penalty: 1.1, max_tokens: 8, cache_salt: "s" }],
  ["/v1/completions", { prompt: ["Once upon", [4, 5, 6]], max_tokens: 8, logprobs: 2, echo: false, best_of: 1, stream: false }],
  ["/v1/completions", { prompt: "Once upon a time", max_tokens: 8, stream: true, ignore_eos: true }],
  ["/v1/completions", { prompt: ["Once", [4, "upon", 6]], max_tokens: 1, logprobs: 2, echo: true, n: 2, min_tokens: 1, stop_token_ids: [5], add_special_tokens: false }],
  ["/completion", { prompt: [4, "Once", 5], n_predict: 8, n_probs: 3, return_tokens: true, response_fields: ["content", "generation_settings/stop"], logit_bias: [[5, false], ["a", 1.5]], mirostat: 0 }],
  ["/completion", { prompt: { prompt_string: "Once" }, n_predict: 8, n_cmpl: 2, stream: true, return_progress: true, timings_per_token: true, samplers: ["top_k"] }],
  ["/v1/chat/completions", { messages: [...messages, { role: "assistant", content: "a" }], continue_final_message: true, structured_outputs: { regex: "[a-z]{1,4}" }, max_tokens: 8 }],
  ["/v1/chat/completions", { messages: [...messages, { role: "assistant", content: null, function_call: { name: "f", arguments: "{}" } }, { role: "function", name: "f", content: "1" }], functions: [{ name: "f", parameters: { type: "object" } }], function_call: { name: "f" }, max_tokens: 8 }],
  ["/v1/responses", { model: "nano", input: "Hi 你好", instructions: "Be brief.", stream: true, max_output_tokens: 8, include: ["reasoning.encrypted_content", "message.output_text.logprobs"], top_logprobs: 2, reasoning: { effort: "low", summary: "auto" }, metadata: { a: "b" }, text: { format: { type: "text" }, verbosity: "low" } }],
  ["/v1/responses", { input: [{ role: "developer", content: [{ type: "input_text", text: "a" }] }, ...messages, { type: "reasoning", summary: [], encrypted_content: "thought:x" }, { type: "function_call", call_id: "c", name: "get_weather", arguments: '{"city":"Paris"}' }, { type: "function_call_output", call_id: "c", output: [{ type: "input_text", text: "sunny" }] }, { type: "custom_tool_call", call_id: "d", name: "p", input: "x" }],
    tools: [...Object.values(TOOLS).map((x) => ({ type: "function", ...x.function })), { type: "custom", name: "p" }, { type: "namespace", name: "s", tools: [{ type: "function", name: "g" }] }], tool_choice: { type: "allowed_tools", mode: "auto", tools: [{ type: "function", name: "g" }] }, parallel_tool_calls: false, max_output_tokens: 8 }],
  ["/v1/messages", { system: [{ type: "text", text: "a" }], messages: [{ role: "user", content: [{ type: "text", text: "What is 27 plus 58? 🦙" }] }], stream: true, max_tokens: 8, stop_sequences: ["x"], thinking: { type: "adaptive" }, temperature: 0.5 }],
  ["/v1/messages?beta=true", { messages: [...messages, { role: "assistant", content: [{ type: "thinking", thinking: "a", signature: "b" }, { type: "tool_use", id: "t1", name: "get_weather", input: { city: "Paris" } }] }, { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", is_error: true, content: [{ type: "text", text: "sunny" }] }] }, { role: "system", content: "b" }], tools: [{ name: "get_weather", input_schema: { type: "object", properties: { city: { type: "string" } } } }], tool_choice: { type: "auto", disable_parallel_tool_use: true }, max_tokens: 8 }],
  ["/v1/messages/count_tokens", { system: "a", messages, tools: [{ type: "web_search_20250305", name: "web_search" }] }],
  ["/api/chat", { model: "nano", messages: [{ role: "System", content: "a" }, ...messages, { role: "assistant", content: "", thinking: "b", tool_calls: [{ id: "c", function: { name: "get_weather", arguments: { city: "Paris" } } }] }, { role: "tool", tool_name: "get_weather", content: "sunny", images: ["aGk="] }], tools: Object.values(TOOLS), think: "low", keep_alive: "1h30m", truncate: true, options: { num_predict: 8, temperature: 0.5, stop: ["x"], num_ctx: 512, seed: 7, repeat_penalty: 1.1, repeat_last_n: 64, draft_num_predict: 2, mirostat: 1 } }],
  ["/api/chat", { name: "nano:latest", messages, stream: false, format: { type: "object", properties: { a: { type: "boolean" } }, required: ["a"] }, logprobs: true, top_logprobs: 2, options: { num_predict: 8 } }],
  ["/api/generate", { model: "nano", prompt: "Hi <turn|>", system: "a", raw: false, suffix: "", template: "", context: [], images: [], think: false, keep_alive: 0, options: { num_predict: 8, top_k: 40 } }],
  ["/api/generate", { model: "nano", prompt: "<|turn>user\nHi<turn|>", raw: true, format: "json", stream: false, options: { num_predict: 8 } }],
  ["/api/show", { model: "nano", verbose: true }],
  ["/api/pull", { model: "nano", stream: true }],
  ["/tokenize", { content: "Grüße <|turn>", add_special: true, parse_special: true, with_pieces: true }],
  ["/detokenize", { tokens: [1, 2, 3, 4000] }],
  ["/apply-template", { messages, tools: Object.values(TOOLS) }],
].map(([path, body]) => [path, JSON.stringify(body)]);

const values = ["null", "true", "-1", "0", "1e308", "-1e999", "9223372036854775807", "9223372036854775808", "1e-400", "2147483648", "4294967296", "0.1", '""', '"\\u0000"', '"\\ud800"', '"<|turn>model"',
  "[]", "{}", "[[]]", `[${"0,".repeat(3000)}0]`, `"${"a".repeat(20000)}"`, "[".repeat(70) + "]".repeat(70), '{"type":"image_url","image_url":{"url":"http://127.0.0.1/"}}', '{"a":1,"a":2}', "NaN", "'x'", '"off"', '"required"'];
const KEYS = "model messages prompt n stop tools stream seed role content type function input output name call_id text reasoning".split(" ");
const anything = () => values[pick(values.length)];
const byte = () => String.fromCharCode(pick(256));
const mutations = [
  (s) => s.replace(/(?<=:)("(?:[^"\\]|\\.)*"|[-\d.e]+|true|false|null)/g, (v) => (pick(8) ? v : anything())), // values
  (s) => s.replace(/"[a-z_]+"(?=:)/g, (k) => (pick(20) ? k : `"${KEYS[pick(KEYS.length)]}"`)), // keys
  (s) => s.slice(0, pick(s.length)),
  (s) => { const i = pick(s.length); return s.slice(0, i) + byte() + s.slice(i + 1); },
  (s) => { const i = pick(s.length); return s.slice(0, i) + s.slice(i + pick(20)); },
  (s) => { const i = pick(s.length), j = pick(s.length); return s.slice(0, i) + s.slice(j, j + pick(200)) + s.slice(i); },
  (s) => { const i = pick(s.length); return s.slice(0, i) + anything() + s.slice(i); },
  (s) => s.replace(/\[[^[\]]*\]|\{[^{}]*\}/, () => anything()),
  (s) => { const [, other] = seeds[pick(seeds.length)]; return s.slice(0, pick(s.length)) + other.slice(pick(other.length)); },
  () => Array.from({ length: pick(200) }, byte).join(""),
];
// Half of them stay JSON, and get further.
function mutate(s) {
  const most = pick(2) ? 2 : mutations.length;
  for (let k = 1 + pick(3); k > 0; k--) s = mutations[pick(most)](s);
  return Buffer.from(s, "latin1");
}

const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
function send(path, body) {
  return new Promise((done) => {
    const timer = setTimeout(() => (request.destroy(), done({ hang: true })), HANG_MS);
    const request = http.request({ port: server.port, agent, path, method: "POST", headers: { "content-type": "application/json", authorization: `Bearer ${attacker}`, "content-length": body.length } }, (r) => {
      const got = [];
      r.on("data", (d) => got.push(d));
      const end = () => (clearTimeout(timer), done({ status: r.statusCode, text: Buffer.concat(got).toString() }));
      r.on("end", end);
      r.on("error", end);
    });
    request.on("error", (e) => (clearTimeout(timer), done({ error: e.code })));
    request.end(body);
  });
}

const seen = {};
async function attack(path, body) {
  const { status, text = "", hang, error } = await send(path, body), what = `${path} ${body.toString("latin1").slice(0, 300)}`;
  seen[status ?? error ?? "hang"] = (seen[status ?? error ?? "hang"] ?? 0) + 1;
  check(!hang, `a hang: ${what}`);
  check(error || STATUS.has(status), `status ${status}: ${what}`);
  check(status !== 500, `500: ${what}`);
  check(!text.includes(SECRET), `somebody else's text: ${what}`);
  if (status >= 400) {
    let message;
    try { ({ error: message } = JSON.parse(text)); } catch { /* checked below */ }
    if (!path.startsWith("/api/")) message = message?.message; // Ollama's are a string
    check(typeof message === "string", `an error's shape (${status} ${text.slice(0, 80)}): ${what}`);
  }
}

// --- raw bytes
const heads = [
  `POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${attacker}\r\nContent-Length: 20\r\n\r\n{"messages":"abcde"}`,
  "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
  `POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${attacker}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n0\r\n\r\n`,
  "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
  `GET /metrics?a=%00%ff HTTP/1.0\r\nx-api-key: ${attacker}\r\nConnection: keep-alive\r\n\r\n`,
];
const wire = [
  ...mutations.slice(2, 6),
  (s) => s.replace(/\r\n/, () => ["\n", "\r", "\r\n\r\n", "\r\n ", "\0\r\n"][pick(5)]),
  (s) => s.replace(/\d+/, () => ["-1", "99999999999999999999", "0x10", "1e3", "", "+5", "4294967297"][pick(7)]),
  (s) => s.replace(/: /, () => [" : ", ":\t", ":", ": \x7f"][pick(4)]),
  (s) => s.replace("\r\n", `\r\n${"A: b\r\n".repeat(pick(200))}`),
  (s) => s + heads[pick(heads.length)],
];
async function garbage() {
  let s = pick(10) ? heads[pick(heads.length)] : Array.from({ length: pick(3000) }, byte).join("");
  for (let k = pick(4); k > 0; k--) s = wire[pick(wire.length)](s);
  const { text } = await talk(server.port, Buffer.from(s, "latin1"), 50);
  check(!text || text.startsWith("HTTP/1."), `an answer to ${JSON.stringify(s.slice(0, 200))}: ${JSON.stringify(text.slice(0, 80))}`);
  check(!text.includes(SECRET), `somebody else's text to ${JSON.stringify(s.slice(0, 200))}`);
}

let next = 0;
await Promise.all(Array.from({ length: 6 }, async () => {
  while (next < total && server.alive()) {
    next++;
    const [path, body] = seeds[pick(seeds.length)];
    if (pick(4)) await attack(path, mutate(body));
    else await garbage();
  }
}));
attacked = false;
await living;
check(answers > 0 || (await ask()) === answer, "the victim is answered");
check(server.alive(), `the server lives; its log ends in: ${server.log().slice(-2000)}`);
const { tandem_num_requests_running: running } = await server.metrics({ authorization: `Bearer ${victim}` });
same(running, 0, "nothing runs on");
same(await server.stop(), 0, "the server ends well");
check(!/Sanitizer|runtime error/.test(server.log()), server.log().slice(-3000));
check(!server.log().includes(SECRET), "the log has no prompts");
console.log(`${total} attacks, ${answers} answers of the victim; statuses ${JSON.stringify(seen)}`);
finish();
