// What open dashboards cost the server: node cost.mjs TANDEM [PAIRS]. Streams as ten tabs have them; not a test, docs/dashboard.md has results.
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { post, serve, sleep } from "../server/serve.mjs";

const TABS = 10, tandem = process.argv[2], pairs = Number(process.argv[3] ?? 41);
const server = await serve(tandem, ["--threads", "1"]);
// The server and its clients on processors of their own, so that the cost of reading is not counted.
execFileSync("taskset", ["-acp", "0", String(server.pid)]);
execFileSync("taskset", ["-acp", "1", String(process.pid)]);

async function open(n) {
  const stop = new AbortController();
  for (let i = 0; i < n; i++) {
    const r = await fetch(`${server.url}/api/stats?stream=1&interval_ms=500&window_s=3`, { signal: stop.signal });
    (async () => {
      try {
        for await (const _ of r.body);
      } catch {
        // closed
      }
    })();
  }
  return () => (stop.abort(), sleep(100));
}
// Seconds of CPU time of all threads of the server so far.
function cpu() {
  let ns = 0;
  for (const task of readdirSync(`/proc/${server.pid}/task`)) ns += Number(readFileSync(`/proc/${server.pid}/task/${task}/schedstat`, "utf8").split(" ")[0]);
  return ns / 1e9;
}
async function shareOf(ms) {
  const from = cpu(), since = performance.now();
  await sleep(ms);
  return (cpu() - from) / ((performance.now() - since) / 1e3);
}
// Tokens per second, and CPU time per token, of one response.
async function decode() {
  const from = cpu(), body = { prompt: "Once upon a time", max_tokens: 1500, ignore_eos: true, temperature: 0, speculative: "off" };
  const { timings } = await (await post(server.url, "/v1/completions", body)).json();
  return { rate: timings.predicted_per_second, cpu: (cpu() - from) / timings.predicted_n };
}
// The median, and an interval of order statistics that covers it with 95%.
function median(x) {
  const v = [...x].sort((a, b) => a - b), n = v.length, k = Math.max(0, Math.floor(n / 2 - 0.98 * Math.sqrt(n)));
  return { mid: v[Math.floor(n / 2)], low: v[k], high: v[n - 1 - k] };
}
const show = (x) => (({ mid, low, high }) => `${mid.toFixed(3)} (${low.toFixed(3)} to ${high.toFixed(3)})`)(median(x));

const idle = [], watched = [];
for (let i = 0; i < 9; i++) {
  idle.push(await shareOf(2000));
  const close = await open(TABS);
  watched.push(await shareOf(2000));
  await close();
}
console.log(`CPU time of an idle server: ${(100 * median(idle).mid).toFixed(2)}% of a core, with ${TABS} streams ${(100 * median(watched).mid).toFixed(2)}%`);

await decode();
const rate = [], rateControl = [], cost = [], costControl = [];
for (let i = 0; i < pairs; i++) {
  const arm = {}, order = [["a", "tabs", "b"], ["b", "a", "tabs"], ["tabs", "b", "a"]][i % 3];
  for (const name of order) {
    const close = await open(name === "tabs" ? TABS : 0);
    arm[name] = await decode();
    await close();
  }
  rate.push(arm.tabs.rate / arm.a.rate), rateControl.push(arm.b.rate / arm.a.rate);
  cost.push(arm.tabs.cpu / arm.a.cpu), costControl.push(arm.b.cpu / arm.a.cpu);
}
console.log(`${pairs} pairs, ${TABS} streams relative to none: tokens/s ${show(rate)}, control ${show(rateControl)}; CPU time per token ${show(cost)}, control ${show(costControl)}`);
await server.stop();
