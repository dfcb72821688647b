// Many connections at once: some do nothing, some stream, and a new one is served at once. Usage: node crowd.mjs TANDEM [IDLE] [STREAMS]
import { connect } from "node:net";
import { check, finish, post, same, serve, sleep, stopwatch } from "./serve.mjs";

const [tandem, idle = "256", streams = "64"] = process.argv.slice(2);
const server = await serve(tandem);
const ask = (i, stream) => ({ messages: [{ role: "user", content: `What is ${20 + i} plus ${50 + i}?` }], temperature: 0, stream });
const GET = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

function open() {
  return new Promise((done, fail) => {
    const socket = connect(server.port, "127.0.0.1", () => done(socket));
    socket.on("error", fail);
  });
}
function exchange(socket) {
  return new Promise((done) => {
    socket.once("data", (d) => done(d.toString().split("\r\n")[0]));
    socket.once("close", () => done("closed"));
    if (socket.closed) done("closed");
    socket.write(GET);
  });
}
async function text(i) {
  const reply = await (await post(server.url, "/v1/chat/completions", ask(i, true))).text();
  return reply.split("\n").filter((l) => l.startsWith("data: {")).map((l) => JSON.parse(l.slice(6)).choices[0]?.delta?.content ?? "").join("");
}

const alone = [];
for (let i = 0; i < Number(streams); i++) alone.push((await (await post(server.url, "/v1/chat/completions", ask(i, false))).json()).choices[0].message.content);

const watch = stopwatch(), before = server.memory(), quiet = await Promise.all(Array.from({ length: Number(idle) }, open));
for (const s of quiet.slice(0, quiet.length / 2)) same(await exchange(s), "HTTP/1.1 200 OK", "before they idle");
const each = (server.memory() - before) / quiet.length;
check(each < 16, `an idle connection takes ${each.toFixed(2)} KiB`);

const times = [];
let busy = true;
const looks = (async () => {
  while (busy) {
    const start = performance.now();
    same((await fetch(`${server.url}/health`)).status, 200, "/health in the crowd");
    times.push(performance.now() - start);
    await sleep(10);
  }
})();
for (let round = 0; round < 3; round++) same(await Promise.all(alone.map((_, i) => text(i))), alone, "each stream as if it were alone");
busy = false;
await looks;
times.sort((a, b) => a - b);
const p99 = times[Math.floor(times.length * 0.99)];
// A connection that has sent nothing is closed after 10 s, which pass here when the machine is busy.
const spoke = quiet.slice(0, quiet.length / 2), silent = watch.ms() < 9000 ? quiet.slice(quiet.length / 2) : [];
for (const s of [...spoke, ...silent]) same(await exchange(s), "HTTP/1.1 200 OK", "after they idled");
quiet.forEach((s) => s.destroy());
console.log(`${idle} idle, ${streams} streams: /health p99 ${p99.toFixed(1)} ms of ${times.length}; an idle connection takes ${each.toFixed(2)} KiB`);
watch.inTime(p99, 250, "p99 of /health");
same(await server.stop(), 0, "SIGTERM ends the server");
finish();
