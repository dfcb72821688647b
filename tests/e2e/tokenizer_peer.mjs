// Prints the ids of texts as another implementation sees them. Usage: node tokenizer_peer.mjs TOKENIZER_JSON [CLASS] < TEXTS
// CLASS is the tokenizer_class, by default GemmaTokenizer. Each line of TEXTS is a JSON string; its ids are printed in one line,
// separated by spaces. No <bos>.
import { readFileSync } from "node:fs";
import { TokenizerLoader } from "@lenml/tokenizers";

const [file, tokenizer_class = "GemmaTokenizer"] = process.argv.slice(2);
if (!file) {
  console.error("usage: node tokenizer_peer.mjs TOKENIZER_JSON [CLASS] < TEXTS");
  process.exit(2);
}
const tokenizerJSON = JSON.parse(readFileSync(file, "utf8"));
const tokenizer = TokenizerLoader.fromPreTrained({ tokenizerJSON, tokenizerConfig: { tokenizer_class } });
const lines = readFileSync(0, "utf8").split("\n");
if (lines.at(-1) === "") lines.pop();
for (const line of lines) {
  const text = JSON.parse(line);
  process.stdout.write((text ? tokenizer.encode(text, { add_special_tokens: false }).join(" ") : "") + "\n");
}
