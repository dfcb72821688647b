// A server under test on a free port, and what its tests share.
import { spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { connect } from "node:net";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { isDeepStrictEqual } from "node:util";

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// --- checks: a failed one prints a line, the run goes on
let cases = 0, failed = 0;
export function check(ok, what) {
  cases++;
  if (ok) return true;
  failed++;
  console.log(`FAILED: ${what}`);
  return false;
}
const show = (x) => (JSON.stringify(x) ?? String(x)).slice(0, 400);
export const same = (got, want, what) => check(isDeepStrictEqual(got, want), `${what}: ${show(got)} instead of ${show(want)}`);
export const matches = (text, pattern, what) => check(pattern.test(text ?? ""), `${what}: ${show(text)} is not ${pattern}`);
export async function group(name, run) {
  try {
    await run();
  } catch (e) {
    check(false, `${name}: ${e.stack ?? e}`);
  }
}
// The error that a call ends with; none is a failure.
export async function errorOf(promise, what) {
  try {
    await promise;
  } catch (e) {
    return e;
  }
  check(false, `${what}: no error`);
  return {};
}
export function finish() {
  console.log(failed ? `${failed} of ${cases} cases failed` : `${cases} cases passed`);
  process.exit(failed ? 1 : 0);
}
// A time limit is for a failure only: a machine that is busy with other work needs longer.
export async function until(met, what, ms = 60000) {
  const end = Date.now() + ms;
  while (Date.now() < end) {
    if (await met()) return true;
    await sleep(5);
  }
  return check(false, `${what}: not within ${ms} ms`);
}

// Times relative to the pace of the machine: a timer of this process is late when the machine is busy with other work, and a
// bound grows by three times the longest such delay since the stopwatch was started.
const timers = monitorEventLoopDelay({ resolution: 10 });
timers.enable();
export function stopwatch() {
  timers.reset();
  const start = performance.now();
  return {
    ms: () => performance.now() - start,
    inTime: (ms, bound, what) => check(ms <= bound + (3 * timers.max) / 1e6, `${what}: ${ms.toFixed(1)} ms, at most ${bound} + 3 * ${(timers.max / 1e6).toFixed(1)}`),
  };
}

// --- a server
// The model of servers that are started without -m. nano-qwen makes more mistakes: what an answer must say is for nano alone.
export const MODEL = process.env.TANDEM_MODEL ?? "nano", CLEVER = MODEL === "nano";
const running = new Set();
process.on("exit", () => running.forEach((p) => p.kill("SIGKILL")));

export async function serve(tandem, flags = [], env = {}) {
  const child = spawn(tandem, ["serve", "--port", "0", ...flags], { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  let log = "", code;
  child.stdout.on("data", (d) => (log += d));
  child.stderr.on("data", (d) => (log += d));
  const ended = new Promise((done) => child.on("close", (c, signal) => {
    running.delete(child);
    done((code = c ?? signal));
  }));
  running.add(child);
  const address = () => /https?:\/\/[^\s/]+:(\d+)/.exec(log);
  while (!address() && code === undefined) await sleep(10);
  if (code !== undefined) throw new Error(`the server ended with ${code}: ${log}`);
  const [url, port] = address();
  while ((await fetch(`${url}/health`)).status === 503) await sleep(10);
  const proc = (name) => readFileSync(`/proc/${child.pid}/${name}`, "utf8");
  return {
    url, port: Number(port), pid: child.pid,
    log: () => log,
    alive: () => code === undefined,
    // Its exit code.
    stop(signal = "SIGTERM") {
      child.kill(signal);
      return ended;
    },
    // All numbers of /metrics by name and labels, the model's own left out: tandem_x{a="b"}.
    async metrics(headers = {}) {
      const text = await (await fetch(`${url}/metrics`, { headers: { ...headers, connection: "close" } })).text(), out = {};
      for (const [, name, labels, value] of text.matchAll(/^([a-z_:]+)(?:\{(.*)\})? (\S+)$/gm)) {
        const rest = (labels ?? "").split(",").filter((x) => x && !x.startsWith("model_name=")).join(",");
        out[rest ? `${name}{${rest}}` : name] = Number(value);
      }
      return out;
    },
    memory: () => Number(/VmRSS:\s+(\d+)/.exec(proc("status"))[1]), // KiB
    descriptors: () => readdirSync(`/proc/${child.pid}/fd`).length,
    cpu: () => { // seconds
      const f = proc("stat").slice(proc("stat").lastIndexOf(")") + 2).split(" ");
      return (Number(f[11]) + Number(f[12])) / 100;
    },
  };
}

// What a server says to bytes, up to the end of the connection or so many milliseconds.
export function talk(port, bytes, ms = 2000) {
  return new Promise((done) => {
    const socket = connect(port, "127.0.0.1"), got = [];
    const end = (how) => {
      clearTimeout(timer);
      socket.destroy();
      done({ how, text: Buffer.concat(got).toString("latin1") });
    };
    const timer = setTimeout(end, ms, "time");
    socket.on("connect", () => socket.write(bytes));
    socket.on("data", (d) => got.push(d));
    socket.on("end", () => end("end"));
    socket.on("error", () => end("error"));
  });
}

export const post = (url, path, body, options = {}) =>
  fetch(url + path, { method: "POST", headers: { "content-type": "application/json", ...options.headers }, body: typeof body === "string" ? body : JSON.stringify(body), signal: options.signal });

// Reproducible random numbers.
export function random(seed) {
  let x = seed >>> 0;
  return (n) => {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    return Math.floor((x / 4294967296) * n);
  };
}

export const TOOLS = Object.fromEntries(Object.entries({
  get_weather: ["Current weather of a city", { city: ["City name", "string", true], unit: [null, "string", false, ["C", "F"]] }],
  get_time: ["Local time of a city", { city: ["City name", "string", true] }],
  set_timer: ["Start a timer", { minutes: ["Length in minutes", "integer", true] }],
  turn_light: ["Switch a light", { on: ["True for on", "boolean", true], room: ["Room", "string", true] }],
}).map(([name, [description, fields]]) => {
  const properties = {}, required = [];
  for (const [key, [about, type, needed, values]] of Object.entries(fields)) {
    properties[key] = { ...(about && { description: about }), ...(values && { enum: values }), type };
    if (needed) required.push(key);
  }
  return [name, { type: "function", function: { name, description, parameters: { type: "object", properties, required } } }];
}));
