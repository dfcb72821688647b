// nano's text in llama.cpp and in tandem, from the same ids: at least 18 of 20 held-out prompts must agree to the last token.
// Usage: node nano_peer.mjs TANDEM
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { getLlama } from "node-llama-cpp";

const root = join(import.meta.dirname, "..", ".."), tandem = process.argv[2];
const all = JSON.parse(readFileSync(join(root, "tests/golden/nano/dflash-acceptance.json")));
const items = all.filter((_, i) => i % 13 === 0).slice(0, 20); // all classes

const llama = await getLlama({ gpu: false, maxThreads: 1, build: "never", logLevel: "error" });
const model = await llama.loadModel({ modelPath: join(root, "models/nano/target.gguf") });
const context = await model.createContext({ threads: 1, contextSize: 1024, batchSize: 256, flashAttention: false, swaFullCache: true });
const sequence = context.getSequence();
let same = 0;
for (const { class: name, prompt } of items) {
  const flags = ["run", "-m", "nano", "--print-ids", "--temp", "0", "-n", "200", "--ids", prompt.join(",")];
  const ours = execFileSync(tandem, flags, { encoding: "utf8" }).trim().split(" ").map(Number), theirs = [];
  await sequence.clearHistory();
  for await (const t of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) if (theirs.push(t) === ours.length) break;
  if (ours.join() === theirs.join()) same++;
  else console.log(`${name}: other text from token ${theirs.findIndex((t, i) => t !== ours[i])} on`);
}
console.log(`nano: ${same} of ${items.length} cases passed`);
process.exit(items.length === 20 && same >= 18 ? 0 : 1);
