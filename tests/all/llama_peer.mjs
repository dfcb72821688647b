// Loads GGUF files that tandem wrote into llama.cpp (the npm package node-llama-cpp) and compares the greedy tokens.
// Usage: node llama_peer.mjs TANDEM DIR     DIR has NAME.f32.gguf for each model of `equal`, and NAME.TYPE.gguf to be loaded
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { getLlama } from "node-llama-cpp";

const [tandem, dir] = process.argv.slice(2);
if (!dir) {
  console.error("usage: node llama_peer.mjs TANDEM DIR");
  process.exit(2);
}
const N = 48; // tokens of a golden case
const equal = { "gemma4-dense": N, "gemma4-moe": N, "gemma4-ple": 10, "qwen35-dense": N, "qwen35-moe": N }; // how many must agree
const golden = join(import.meta.dirname, "..", "golden");
let cases = 0, failed = 0;

function check(ok, what) {
  cases++;
  if (ok) return;
  failed++;
  console.log("FAILED: " + what);
}

// The prompts of a golden.safetensors: an i32 tensor each.
function prompts(model) {
  const file = readFileSync(join(golden, model, "golden.safetensors"));
  const size = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, 8 + size));
  return Object.keys(header).filter((k) => k.endsWith(".input_ids")).sort().map((k) => {
    const [from, to] = header[k].data_offsets;
    const ids = [];
    for (let at = from; at < to; at += 4) ids.push(file.readInt32LE(8 + size + at));
    return ids;
  });
}

function ours(file, ids, n) {
  const flags = ["--print-ids", "--ignore-eos", "--temp", "0", "--kv", "f32", "-n", String(n)];
  return execFileSync(tandem, ["run", "-m", file, "--ids", ids.join(","), ...flags], { encoding: "utf8" })
    .trim().split(" ").map(Number);
}

// One thread: with more its workers wait by spinning, which takes for ever on a busy machine.
// f32 K/V, no flash attention, a sliding cache that forgets nothing: the same arithmetic as ours as far as it goes.
async function theirs(llama, file, all, n) {
  const model = await llama.loadModel({ modelPath: file });
  if (!all.length) return model.dispose(); // a drafter: it cannot run alone
  const context = await model.createContext({
    threads: 1, contextSize: 256, batchSize: 128, flashAttention: false, swaFullCache: true,
    experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32",
  });
  const sequence = context.getSequence(), out = [];
  for (const ids of all) {
    const tokens = [];
    await sequence.clearHistory();
    for await (const t of sequence.evaluate(ids, { temperature: 0, yieldEogToken: true }))
      if (tokens.push(t) === n) break;
    out.push(tokens);
  }
  await model.dispose();
  return out;
}

const llama = await getLlama({ gpu: false, maxThreads: 1, build: "never", logLevel: "error" });
console.log(`peer: llama.cpp ${llama.llamaCppRelease.release}`);
for (const name of readdirSync(dir).filter((f) => f.endsWith(".gguf") && (!f.includes("-of-") || f.includes("-00001-of-"))).sort()) {
  const file = join(dir, name), [model, type] = name.split(".");
  const must = type === "f32" ? equal[model] : 0;
  const all = must ? prompts(model) : /-(assistant|dflash)$/.test(model) ? [] : [[2, 15, 9, 77]];
  try {
    const peer = await theirs(llama, file, all, must ? N : 8);
    check(true, `${name} was loaded`);
    all.forEach((ids, i) => {
      check(peer[i].length === (must ? N : 8), `${name}: ${peer[i].length} tokens came`);
      if (!must) return;
      const mine = ours(file, ids, N);
      const same = mine.findIndex((t, k) => t !== peer[i][k]);
      check(same < 0 || same >= must, `${name}, case ${i}: token ${same} differs\n  ours   ${mine}\n  theirs ${peer[i]}`);
    });
  } catch (e) {
    check(false, `${name}: ${e.message}`);
  }
}
console.log(`${cases - failed} cases passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
