// The live statistics: one stream of events for the whole page, with a bounded history. A key of a user may not read
// the statistics of the server; its own numbers then come from /metrics.
import { ApiError, call, events, key, needsKey } from "./api";
import { store } from "./store";

export interface Drafts {
  rounds: number;
  drafted: number;
  accepted: number;
  acceptance_rate: number;
  acceptance_length: number;
  recent_drafted?: number;
  recent_accepted?: number;
}
export type Round = [method: string, drafted: number, accepted: number];
export interface Slot {
  request_id: string;
  prompt_tokens: number;
  tokens: number;
  age_s: number;
  phase: "prefill" | "decode";
  prompt_done: number;
  cached_tokens: number;
  decode_s: number;
  rounds: number;
  last_rounds: Round[];
}
export interface Histogram {
  bounds_s: number[];
  counts: number[];
}
export interface KvClass {
  kind: "full" | "sliding" | "draft" | "state";
  window: number;
  held_bytes: number;
  used_bytes: number;
  pinned_bytes: number;
  reserved_bytes: number;
}
export interface Gpu {
  name: string;
  temperature_c: number | null;
  power_w: number | null;
  utilisation: number | null;
  memory_bytes: number | null;
  memory_used_bytes: number | null;
}
export interface Stats {
  ts: number;
  model: string;
  state: string;
  draining: boolean;
  bench: boolean;
  rates: { prompt_tokens_per_s: number; cached_tokens_per_s: number; completion_tokens_per_s: number; requests_per_s: number;
    steps_per_s: number; rows_per_step: number };
  requests: { running: number; queued: number; submitted: number; refused: number; finished: Record<string, number> };
  tokens: { prompt: number; cached: number; completion: number };
  kv: { bytes: number; pinned_bytes: number; reserved_bytes: number; cached_bytes: number; pressure: number; prefix_hits: number;
    prefix_misses: number; prefix_evicted: number; stored_bytes: number; parked_bytes: number; classes: KvClass[] };
  speculation: Drafts & { plain_rounds: number; drafted_by_position: number[]; accepted_by_position: number[];
    methods: Record<string, Drafts>; routes: Record<string, number> };
  steps: { steps: number; rows: number; seconds: number; buckets: number[] };
  slots: Slot[];
  latency: Record<string, Histogram>;
  process: { resident_bytes: number; held_bytes: number; host_bytes: number; host_available_bytes: number; uptime_s: number };
  http: { connections: number; stats_streams: number };
  gpus: Gpu[];
}
// The numbers of one user's requests, from /metrics.
export interface OwnStats {
  running: number;
  queued: number;
  prompt: number;
  completion: number;
  drafted: number;
  accepted: number;
  latency: Record<string, Histogram>;
}
export interface Sample {
  at: number;
  completion: number;
  prompt: number;
  running: number;
  queued: number;
  acceptance: number | null;
  step_ms: number | null;
}
export type Connection = "connecting" | "open" | "lost" | "own" | "closed";

export const HISTORY_S = 300;
const INTERVAL_MS = 500;
export const stats = store<Stats | null>(null);
export const own = store<OwnStats | null>(null);
export const connection = store<Connection>("connecting");
export const history: Sample[] = [];
let before: Stats | null = null;

// The server counts draft tokens when a request ends; the last rounds of those that run are newer.
function acceptanceOf(s: Stats): number | null {
  let drafted = 0, accepted = 0;
  for (const slot of s.slots) for (const [, d, a] of slot.last_rounds) drafted += d, accepted += a;
  for (const m of Object.values(s.speculation.methods)) drafted += m.recent_drafted ?? 0, accepted += m.recent_accepted ?? 0;
  return drafted ? accepted / drafted : null;
}

function take(s: Stats): void {
  const steps = before ? s.steps.steps - before.steps.steps : 0;
  history.push({
    at: s.ts,
    completion: s.rates.completion_tokens_per_s,
    prompt: s.rates.prompt_tokens_per_s,
    running: s.requests.running,
    queued: s.requests.queued,
    acceptance: acceptanceOf(s),
    step_ms: before && steps > 0 ? ((s.steps.seconds - before.steps.seconds) / steps) * 1e3 : null,
  });
  while (history.length && history[0]!.at < s.ts - HISTORY_S) history.shift();
  before = s;
  stats.set(s);
}

const histogramNames = { first_token: "time_to_first_token_seconds", between_tokens: "inter_token_latency_seconds",
  total: "e2e_request_latency_seconds" };

// Reads the lines of /metrics that a user's key gets.
export function readMetrics(text: string): OwnStats {
  const value = new Map<string, number>();
  const buckets: Record<string, [number, number][]> = {};
  for (const line of text.split("\n")) {
    const m = /^tandem_(\w+)(\{.*\})? (\S+)$/.exec(line);
    if (!m) continue;
    const le = /le="([^"]+)"/.exec(m[2] ?? "");
    if (le) (buckets[m[1]!.replace(/_bucket$/, "")] ??= []).push([le[1] === "+Inf" ? Infinity : Number(le[1]), Number(m[3])]);
    else value.set(m[1]!, Number(m[3]));
  }
  const get = (name: string) => value.get(name) ?? 0;
  const latency: Record<string, Histogram> = {};
  for (const [to, name] of Object.entries(histogramNames)) {
    const all = (buckets[name] ?? []).sort((a, b) => a[0] - b[0]);
    latency[to] = {
      bounds_s: all.map((x) => x[0]).filter((x) => x < Infinity),
      counts: all.map((x, i) => x[1] - (i ? all[i - 1]![1] : 0)),
    };
  }
  return {
    running: get("num_requests_running"), queued: get("num_requests_waiting"), prompt: get("prompt_tokens_total"),
    completion: get("generation_tokens_total"), drafted: get("spec_decode_num_draft_tokens_total"),
    accepted: get("spec_decode_num_accepted_tokens_total"), latency,
  };
}

const sleep = (ms: number, signal: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

async function followOwn(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    own.set(readMetrics(await (await call("/metrics", { signal })).text()));
    connection.set("own");
    await sleep(2000, signal);
  }
}

async function followStats(signal: AbortSignal): Promise<void> {
  const response = await call(`/api/stats?stream=1&interval_ms=${INTERVAL_MS}&window_s=3`, { signal });
  connection.set("open");
  for await (const e of events(response)) if (e.event === "message") take(JSON.parse(e.data));
}

async function follow(signal: AbortSignal): Promise<void> {
  let wait = 250;
  while (!signal.aborted) {
    const since = Date.now();
    try {
      await followStats(signal);
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof ApiError && e.status === 401) return connection.set("closed");
      if (e instanceof ApiError && e.status === 403) {
        try {
          await followOwn(signal);
        } catch {
          // tried again below
        }
      }
    }
    if (signal.aborted) return;
    connection.set("lost");
    wait = Date.now() - since > 5000 ? 250 : Math.min(wait * 2, 4000);
    await sleep(wait, signal);
  }
}

let running: AbortController | null = null;
// Follows the server while the page is visible; a hidden tab costs the server nothing.
export function start(): void {
  const restart = () => {
    running?.abort();
    running = null;
    if (document.hidden || needsKey.get()) return;
    running = new AbortController();
    follow(running.signal);
  };
  document.addEventListener("visibilitychange", restart);
  key.subscribe(restart);
  needsKey.subscribe(restart);
  restart();
}

// Returns the value below which the share q of a histogram lies, within its bounds; null: it is empty.
export function quantile(h: Histogram, q: number): number | null {
  const all = h.counts.reduce((a, b) => a + b, 0);
  let below = 0;
  if (!all) return null;
  for (let i = 0; i < h.counts.length; i++) {
    const n = h.counts[i]!;
    if (n && below + n >= q * all) {
      const low = i ? h.bounds_s[i - 1]! : 0, high = h.bounds_s[i] ?? low;
      return low + ((q * all - below) / n) * (high - low);
    }
    below += n;
  }
  return h.bounds_s.at(-1) ?? null;
}
