// Prints the ids of texts as another implementation sees them. Usage: node tokenizer_peer.mjs TOKENIZER_JSON < TEXTS
// Each line of TEXTS is a JSON string; its ids are printed in one line, separated by spaces. No <bos>.
import { readFileSync } from "node:fs";
import { TokenizerLoader } from "@lenml/tokenizers";

if (process.argv.length !== 3) {
  console.error("usage: node tokenizer_peer.mjs TOKENIZER_JSON < TEXTS");
  process.exit(2);
}
const tokenizerJSON = JSON.parse(readFileSync(process.argv[2], "utf8"));
const tokenizer = TokenizerLoader.fromPreTrained({ tokenizerJSON, tokenizerConfig: { tokenizer_class: "GemmaTokenizer" } });
const lines = readFileSync(0, "utf8").split("\n");
if (lines.at(-1) === "") lines.pop();
for (const line of lines) {
  const text = JSON.parse(line);
  process.stdout.write((text ? tokenizer.encode(text, { add_special_tokens: false }).join(" ") : "") + "\n");
}
