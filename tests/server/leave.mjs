// Clients that leave at random bytes of their request or of its reply: what is counted is what was delivered, and everything
// comes back. Usage: node leave.mjs TANDEM [DISCONNECTS]
import { connect } from "node:net";
import { check, finish, random, same, serve, until } from "./serve.mjs";

const [tandem, count = "1000"] = process.argv.slice(2), total = Number(count), pick = random(9);
// Little room for cached prefixes, so that it is full before memory is looked at.
const server = await serve(tandem, ["--log-json", "--log-level", "info", "--max-lanes", "8", "--ctx", "1024", "--kv-bytes", "12M"]);
const MAX_TOKENS = 120, IN_FLIGHT = 64; // tokens that may be on their way when a client leaves

const prompts = ["Tell me a story.", "What is 27 plus 58?", "Write a Python function that doubles a number.", "你好"];
function requestOf(id, stream) {
  const body = JSON.stringify({ messages: [{ role: "user", content: prompts[pick(prompts.length)] }], stream, logprobs: true, max_tokens: MAX_TOKENS, ignore_eos: true, temperature: 1, n: 1 + pick(2) });
  return Buffer.from(`POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: ${id}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
}

// Tokens that are told of in what came: an entry of logprobs for each.
const tokensIn = (text) => text.split('"top_logprobs":[').length - 1;

// Sends `request`, at most `sent` bytes of it, and leaves behind `taken` bytes of the reply or after so many milliseconds.
function visit(request, { sent, taken, ms, reset }) {
  return new Promise((done) => {
    const socket = connect(server.port, "127.0.0.1"), got = [];
    let n = 0;
    const leave = () => (reset ? socket.resetAndDestroy() : socket.destroy());
    const timer = setTimeout(leave, ms);
    socket.on("connect", () => socket.write(request.subarray(0, sent)));
    socket.on("data", (d) => {
      got.push(d);
      n += d.length;
      if (n >= taken || d.includes("data: [DONE]")) leave();
    });
    socket.on("error", () => {});
    socket.on("close", () => {
      clearTimeout(timer);
      done(Buffer.concat(got).toString());
    });
  });
}

const told = new Map(); // tokens that a client has seen, by request
async function rounds(from, to) {
  let next = from;
  const worker = async () => {
    while (next < to) {
      const id = `leave-${next++}`, stream = pick(4) > 0, request = requestOf(id, stream), early = pick(4) === 0;
      const sent = early ? 1 + pick(request.length - 1) : request.length;
      const text = await visit(request, { sent, taken: pick(40000), ms: early ? pick(3) : stream ? 10000 : pick(100), reset: pick(2) });
      told.set(id, { tokens: tokensIn(text) });
    }
  };
  await Promise.all(Array.from({ length: 8 }, worker));
  await until(async () => {
    const m = await server.metrics();
    return m.tandem_num_requests_running === 0 && m.tandem_num_requests_waiting === 0 && m.tandem_http_connections === 1;
  }, "all lanes and connections come back", 10000);
}

const WARM = 500; // visits until caches and arenas have grown
await rounds(0, WARM);
const memory = server.memory(), descriptors = server.descriptors();
await rounds(WARM, WARM + total);
await until(() => server.descriptors() <= descriptors, `descriptors come back: ${descriptors}, now ${server.descriptors()}`);
const grown = server.memory() - memory;
check(grown < memory * 0.01 + 1024, `memory: ${memory} KiB, and ${grown} KiB more`);

const lines = server.log().split("\n").filter((l) => l.startsWith("{")).map((l) => JSON.parse(l)).filter((l) => l.id?.startsWith("leave-"));
const logged = new Map(lines.map((l) => [l.id, l]));
let sum = 0, left = 0, most = 0;
for (const [id, l] of logged) {
  const { tokens } = told.get(id);
  sum += l.tokens ?? 0;
  left += l.sent !== "all";
  most = Math.max(most, (l.tokens ?? 0) - tokens);
  check((l.tokens ?? 0) >= tokens, `${id}: ${tokens} tokens came, ${l.tokens} were counted`);
  if (l.stream) check((l.tokens ?? 0) <= tokens + 2 * IN_FLIGHT, `${id}: ${l.tokens} tokens were counted, ${tokens} came`);
}
same(lines.length, logged.size, "one log line for each request");
const m = await server.metrics();
same(m.tandem_generation_tokens_total, sum, "the metrics are the sum of the log lines");
same(m['tandem_kv_cache_bytes{state="pinned"}'], 0, "no pages are held");
same(m['tandem_kv_cache_bytes{state="reserved"}'], 0, "no pages are promised");
check(left > (WARM + total) / 2, `clients left: ${left} of ${WARM + total}`);
console.log(`${WARM + total} visits, ${logged.size} requests, ${left} left early, ${sum} tokens; at most ${most} counted that a client did not see; memory +${grown} KiB`);
same(await server.stop(), 0, "SIGTERM ends the server");
finish();
