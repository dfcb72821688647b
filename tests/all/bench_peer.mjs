// tandem and llama.cpp on the same files, in turns: rows per second of a step by its rows (a chain of guesses being verified),
// of prompts, and of single tokens after long contexts. Each cell is timed in pairs that alternate the order. The result is the
// median of the pairs' ratios with a 90% interval, next to our own second run against our first (A/A).
// Usage: node bench_peer.mjs TANDEM OUT_DIR PAIRS CONTEXTS FILE.gguf...
// LLAMA_BENCH=PATH measures with the llama-bench of another build of llama.cpp, such as one with CUDA, instead of the one from npm.
// FIFO=1 runs the timed parts with real-time priority (chrt; root): for a machine that others use.
import { execFileSync, spawn } from "node:child_process";
import { availableParallelism, cpus } from "node:os";
import { writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { createInterface } from "node:readline";

const [tandem, outDir, pairs, contexts, ...files] = process.argv.slice(2);
const CONTEXTS = contexts.split(",").map(Number), ROWS = [1, 2, 4, 8, 16, 32], PROMPT = 512, BATCH = 512;
const STEPS = (rows) => Math.max(2, Math.round(16 / rows)); // timed together
const threads = Number(process.env.THREADS || availableParallelism()), device = process.env.DEVICE || "cpu";

const cellsOf = (context) =>
  context === CONTEXTS[0]
    ? [{ kind: "prefill", rows: PROMPT, context: 0 }, ...ROWS.map((rows) => ({ kind: "chain", rows, context }))]
    : [{ kind: "chain", rows: 1, context }];

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// --- tandem: a process that answers a line for each cell
class Ours {
  constructor(file) {
    this.child = spawn(tandem, ["bench", "rows", "--ask", "-m", file, "--threads", threads, "--device", device, "--no-hash"],
      { stdio: ["pipe", "pipe", "inherit"] });
    this.lines = createInterface({ input: this.child.stdout })[Symbol.asyncIterator]();
  }
  async run({ kind, rows, context }) {
    this.child.stdin.write(kind === "prefill" ? `prefill ${rows}\n` : `chain ${rows} ${context} ${STEPS(rows)}\n`);
    const { value, done } = await this.lines.next();
    if (done) throw new Error("tandem ended");
    const answer = JSON.parse(value);
    if (answer.error) throw new Error(`tandem: ${answer.error}`);
    return answer.tok_s;
  }
  close() { this.child.stdin.end(); }
}

// --- llama.cpp: its own batches, without the wrapper's sampling
class Theirs {
  static async open(model, context, flash) {
    const it = new Theirs();
    it.at = context;
    it.vocabulary = model.fileInfo.metadata.tokenizer.ggml.tokens.length;
    it.context = await model.createContext({ threads, sequences: 2, contextSize: context + 1024, batchSize: BATCH, flashAttention: flash });
    it.raw = it.context._ctx;
    it.raw.setThreads(threads);
    for (let from = 0; from < context; from += BATCH) await it.step(0, from, Math.min(BATCH, context - from), false);
    return it;
  }
  async step(sequence, from, n, all) {
    const tokens = Uint32Array.from({ length: n }, () => 300 + Math.floor(Math.random() * (this.vocabulary - 300)));
    this.raw.initBatch(n);
    this.raw.addToBatch(sequence, from, tokens, Uint32Array.from(all ? tokens.keys() : [n - 1]));
    await this.raw.decodeBatch();
  }
  async run({ kind, rows, context }) {
    const steps = kind === "prefill" ? 1 : STEPS(rows);
    if (kind !== "prefill") await this.raw.copySequenceStateFromOtherSequence(1, 0);
    const start = performance.now();
    for (let k = 0; k < steps; k++) await this.step(1, context + k * rows, rows, kind !== "prefill");
    const ms = performance.now() - start;
    this.raw.disposeSequence(1);
    return (1e3 * rows * steps) / ms;
  }
  close() { return this.context.dispose(); }
}

// --- llama.cpp by its llama-bench: a process for each measurement, which warms up by itself; the last row alone has logits
const llamaBench = process.env.LLAMA_BENCH;
let benchBuild = "";
class TheirsByPath {
  static async open(file, context, flash) { return Object.assign(new TheirsByPath(), { file, flash }); }
  async run({ kind, rows, context }) {
    const args = ["-m", this.file, "-t", threads, "-ngl", device === "cpu" ? 0 : 999, "-p", rows, "-n", 0, "-d", context, "-b", 2048, "-ub", 2048,
      "-fa", this.flash ? 1 : 0, "-r", kind === "prefill" ? 1 : STEPS(rows), "-o", "json"];
    const [result] = JSON.parse(execFileSync(llamaBench, args.map(String), { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }));
    if (!(result?.avg_ts > 0)) throw new Error(`${llamaBench} ${args.join(" ")}: no rate in its output`);
    benchBuild = `${result.build_commit ?? "unknown"}, ${result.backends ?? ""} ${result.gpu_info ?? ""}`.trim();
    return result.avg_ts;
  }
  async close() {}
}

// With flash attention or without, whichever decodes faster after this context; FLASH=on or off settles it, and saves a prompt.
async function bestOf(model, context) {
  const tried = [], choices = { on: [true], off: [false] }[process.env.FLASH] ?? [true, false];
  for (const flash of choices) {
    const it = await (llamaBench ? TheirsByPath : Theirs).open(model, context, flash), cell = { kind: "chain", rows: 1, context };
    await it.run(cell);
    const rates = [];
    for (let i = 0; i < 3; i++) rates.push(await it.run(cell));
    tried.push({ it, flash, rate: rates.sort((a, b) => a - b)[1] });
  }
  tried.sort((a, b) => b.rate - a.rate);
  await tried[1]?.it.close();
  return tried[0];
}

// Sets the scheduling of all threads of both programs. ["-f", "1"]: real-time; ["-o", "0"]: normal.
function schedule(ours, policy) {
  for (const pid of process.env.FIFO ? [process.pid, ours.child.pid] : [])
    execFileSync("chrt", ["-a", policy[0], "-p", policy[1], String(pid)]);
}

// --- what pairs say: the median, and order statistics that hold it in 90% of cases
function interval(x) {
  const s = [...x].sort((a, b) => a - b), n = s.length;
  let low = 0, below = 0.5 ** n;
  for (let term = below; low + 1 < n / 2 && below + (term *= (n - low) / (low + 1)) <= 0.05; low++) below += term;
  return { median: (s[(n - 1) >> 1] + s[n >> 1]) / 2, low: s[low], high: s[n - 1 - low] };
}
const say = ({ median, low, high }) => `${median.toFixed(2)} [${low.toFixed(2)}, ${high.toFixed(2)}]`;

async function measure(ours, theirs, cell) {
  const rates = { ours: [], again: [], theirs: [] };
  await ours.run(cell), await theirs.run(cell);
  for (let i = 0; i < Number(pairs); i++) {
    const turns = { ours: () => ours.run(cell), theirs: () => theirs.run(cell), again: () => ours.run(cell) };
    const order = i % 2 ? ["theirs", "ours", "again"] : ["ours", "theirs", "again"];
    for (const name of order) {
      rates[name].push(await turns[name]());
      await sleep(20); // for the other's threads to come to rest
    }
  }
  const ratios = (a, b) => interval(rates[a].map((x, i) => x / rates[b][i]));
  return { ...cell, ours: interval(rates.ours), theirs: interval(rates.theirs), ratio: ratios("ours", "theirs"), aa: ratios("again", "ours") };
}

function curve(label, context, results, who) {
  const points = results.filter((r) => r.kind === "chain" && r.context === context)
    .map((r) => ({ rows: r.rows, ms: (1e3 * r.rows) / r[who].median, tok_s: r[who].median, tok_s_low: r[who].low, tok_s_high: r[who].high }));
  return { label, kind: "chain", context, points };
}

const llama = llamaBench ? null
  : await (await import("node-llama-cpp")).getLlama({ gpu: false, maxThreads: threads, build: "never", logLevel: "error" });
const release = llama ? `${llama.llamaCppRelease.repo} ${llama.llamaCppRelease.release}` : llamaBench;
console.log(`${cpus()[0].model.trim()}, ${threads} threads, device ${device}; llama.cpp: ${release}${llama ? ", weights in memory of its own, which lets it repack them" : ""}`);
if (llama) console.log(llama.systemInfo.trim());
for (const file of files) {
  const model = llama ? await llama.loadModel({ modelPath: file, useMmap: false }) : file;
  const ours = new Ours(file), results = [];
  console.log(`\n${basename(file)}\n`);
  console.log("| rows | context | tandem, rows/s | llama.cpp, rows/s | ratio | A/A |\n| --- | --- | --- | --- | --- | --- |");
  for (const context of CONTEXTS) {
    const { it, flash } = await bestOf(model, context);
    for (const cell of cellsOf(context)) {
      schedule(ours, ["-f", "1"]);
      const r = await measure(ours, it, cell);
      schedule(ours, ["-o", "0"]);
      results.push({ ...r, flash });
      const name = r.kind === "prefill" ? `prompt of ${r.rows}` : r.rows;
      console.log(`| ${name} | ${r.context} | ${r.ours.median.toFixed(1)} | ${r.theirs.median.toFixed(1)} | ${say(r.ratio)} | ${say(r.aa)} |`);
    }
    console.log(`<!-- llama.cpp after ${context}: flash attention ${flash ? "on" : "off"} -->`);
    await it.close();
  }
  ours.close();
  if (llama) await model.dispose();
  const out = join(outDir, `peer-${basename(file, ".gguf")}.json`);
  const series = [curve("tandem", CONTEXTS[0], results, "ours"), curve("llama.cpp", CONTEXTS[0], results, "theirs")];
  if (benchBuild) console.log(`\nllama.cpp: ${benchBuild}`);
  writeFileSync(out, JSON.stringify({ bench: "rows", model: basename(file), peer: llama ? release : benchBuild, threads, device, cpu: cpus()[0].model, pairs: Number(pairs), results, series }, null, 1));
  console.log(`\nwritten: ${out}`);
}
process.exit(0);
