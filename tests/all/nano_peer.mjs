// The text of an included model in llama.cpp and in tandem, from the same ids, greedy.
// Usage: node nano_peer.mjs TANDEM nano|nano-qwen FILE
// FILE: the model, perhaps with weights of another type. Of F32 weights every text must agree to the last token, or to the first one
// whose margin over the second best is below 0.01, which the order of a sum decides. Other types: 9 of 10 texts, because both programs
// round activations, in different ways.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { getLlama } from "node-llama-cpp";

const TIE = 0.01;
const root = join(import.meta.dirname, "..", ".."), [tandem, name, file] = process.argv.slice(2);
const exact = /f32/i.test(file), scratch = mkdtempSync(join(tmpdir(), "nano-peer-"));
process.on("exit", () => rmSync(scratch, { recursive: true, force: true }));
const all = JSON.parse(readFileSync(join(root, "tests/golden", name, "dflash-acceptance.json")));
const every = Math.floor(all.length / 22), items = all.filter((_, i) => i % every === 0).slice(0, 20); // all classes
const kv = exact ? { experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32" } : {};

// By how much the best logit after these ids exceeds the second best.
function marginAfter(ids) {
  const out = join(scratch, "logits");
  execFileSync(tandem, ["logits", "-m", file, "--ids", ids.join(","), "-o", out], { stdio: "ignore" });
  const bytes = readFileSync(out), size = Number(bytes.readBigUInt64LE(0)), header = JSON.parse(bytes.subarray(8, 8 + size));
  const { shape: [rows, width], data_offsets: [from] } = header.logits, row = [];
  for (let i = 0; i < width; i++) row.push(bytes.readFloatLE(8 + size + from + ((rows - 1) * width + i) * 4));
  const [best, second] = row.sort((a, b) => b - a);
  return best - second;
}

const llama = await getLlama({ gpu: false, maxThreads: 1, build: "never", logLevel: "error" });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({ threads: 1, contextSize: 2048, batchSize: 256, flashAttention: false, swaFullCache: true, ...kv });
const sequence = context.getSequence();
let same = 0, tied = 0, tokens = 0;
for (const { class: kind, prompt } of items) {
  const flags = ["run", "-m", file, "--print-ids", "--temp", "0", "-n", "200", "--ids", prompt.join(","), ...(exact ? ["--kv", "f32"] : [])];
  const ours = execFileSync(tandem, flags, { encoding: "utf8" }).trim().split(" ").map(Number), theirs = [];
  await sequence.clearHistory();
  for await (const t of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) if (theirs.push(t) === ours.length) break;
  const at = ours.findIndex((t, i) => t !== theirs[i]), margin = at < 0 || !exact ? Infinity : marginAfter([...prompt, ...ours.slice(0, at)]);
  tokens += at < 0 ? ours.length : at;
  if (at < 0) same++;
  else if (margin < TIE) tied++;
  else console.log(`${kind}: other text from token ${at} on` + (exact ? `, margin ${margin.toFixed(4)}` : ""));
}
const ok = items.length === 20 && (exact ? same + tied === 20 : same >= 18);
console.log(`${name}: ${same} of ${items.length} texts the same, ${tied} up to a tie, ${tokens} tokens: ${ok ? "20 cases passed" : "FAILED"}`);
process.exit(ok ? 0 : 1);
