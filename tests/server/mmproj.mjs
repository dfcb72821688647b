// A projector (mmproj) with a small tower of random weights for nano, and pictures and videos for tests.
// Usage: node mmproj.mjs DIR makes the directory with mmproj.gguf, a.png and a.avi in it.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { deflateSync } from "node:zlib";

const WIDTH = 32, FF = 64, BLOCKS = 2, HEADS = 2, OUT = 256, TABLE = 1024;

// --- GGUF
const u32 = (x) => { const b = Buffer.alloc(4); b.writeUInt32LE(x); return b; };
const u64 = (x) => { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(x)); return b; };
const f32 = (x) => { const b = Buffer.alloc(4); b.writeFloatLE(x); return b; };
const text = (s) => Buffer.concat([u64(Buffer.byteLength(s)), Buffer.from(s)]);
const pad = (b, n) => Buffer.concat([b, Buffer.alloc((n - (b.length % n)) % n)]);
const TYPE = { u32: 4, f32: 6, bool: 7, str: 8, f32s: 9 };

function put(key, type, v) {
  const value = type === "str" ? text(v) : type === "bool" ? Buffer.from([v ? 1 : 0]) : type === "u32" ? u32(v) : type === "f32" ? f32(v)
    : Buffer.concat([u32(TYPE.f32), u64(v.length), ...v.map(f32)]);
  return Buffer.concat([text(key), u32(TYPE[type]), value]);
}

// Returns numbers that depend on the seed, of a size that keeps the sums of a row about 1. Norms are 1.
function numbers(n, seed, inputs) {
  const out = new Float32Array(n);
  for (let i = 0, x = seed; i < n; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) | 0;
    out[i] = inputs ? (x / 2 ** 31) * Math.sqrt(3 / inputs) : 1;
  }
  return out;
}

function towerTensors() {
  const all = [["v.patch_embd.weight", [16, 16, 3, WIDTH], 768], ["v.position_embd.weight", [WIDTH, TABLE, 2], 1], ["mm.input_projection.weight", [WIDTH, OUT], WIDTH]];
  for (let i = 0; i < BLOCKS; i++) {
    for (const name of ["ln1", "attn_post_norm", "ln2", "ffn_post_norm"]) all.push([`v.blk.${i}.${name}.weight`, [WIDTH], 0]);
    for (const name of ["attn_q_norm", "attn_k_norm"]) all.push([`v.blk.${i}.${name}.weight`, [WIDTH / HEADS], 0]);
    for (const name of ["attn_q", "attn_k", "attn_v", "attn_out"]) all.push([`v.blk.${i}.${name}.weight`, [WIDTH, WIDTH], WIDTH]);
    for (const name of ["ffn_gate", "ffn_up"]) all.push([`v.blk.${i}.${name}.weight`, [WIDTH, FF], WIDTH]);
    all.push([`v.blk.${i}.ffn_down.weight`, [FF, WIDTH], FF]);
  }
  return all;
}

// Makes mmproj.gguf in a new directory, which is removed when the process ends. Returns its path.
export function makeProjector(seed = 1) {
  const dir = mkdtempSync(join(tmpdir(), "mmproj-")), path = join(dir, "mmproj.gguf");
  process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
  writeFileSync(path, projector(seed));
  return path;
}

function projector(seed = 1) {
  const tensors = towerTensors();
  const keys = [
    put("general.architecture", "str", "clip"), put("general.type", "str", "mmproj"), put("clip.has_vision_encoder", "bool", true),
    put("clip.vision.projector_type", "str", "gemma4v"), put("clip.vision.embedding_length", "u32", WIDTH),
    put("clip.vision.feed_forward_length", "u32", FF), put("clip.vision.block_count", "u32", BLOCKS),
    put("clip.vision.attention.head_count", "u32", HEADS), put("clip.vision.projection_dim", "u32", OUT),
    put("clip.vision.patch_size", "u32", 16), put("clip.vision.image_size", "u32", 224),
    put("clip.vision.attention.layer_norm_epsilon", "f32", 1e-6), put("clip.vision.image_mean", "f32s", [0, 0, 0]),
    put("clip.vision.image_std", "f32s", [1, 1, 1]),
  ];
  const infos = [], data = [];
  let at = 0;
  tensors.forEach(([name, shape, inputs], i) => {
    const values = numbers(shape.reduce((a, b) => a * b), seed * 1000 + i, inputs), bytes = pad(Buffer.from(values.buffer), 32);
    infos.push(text(name), u32(shape.length), ...shape.map(u64), u32(0), u64(at));
    data.push(bytes);
    at += bytes.length;
  });
  const head = Buffer.concat([Buffer.from("GGUF"), u32(3), u64(tensors.length), u64(keys.length), ...keys, ...infos]);
  return Buffer.concat([pad(head, 32), ...data]);
}

// --- pictures
let crcTable;
function crc(bytes) {
  crcTable ??= Array.from({ length: 256 }, (_, n) => { for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1; return n >>> 0; });
  let c = 0xffffffff;
  for (const b of bytes) c = crcTable[(c ^ b) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}
const u32be = (x) => { const b = Buffer.alloc(4); b.writeUInt32BE(x >>> 0); return b; };
const chunk = (type, bytes) => { const body = Buffer.concat([Buffer.from(type), bytes]); return Buffer.concat([u32be(bytes.length), body, u32be(crc(body))]); };

// A PNG of width x height whose pixels depend on the seed.
export function png(width, height, seed = 1) {
  const line = Buffer.alloc(1 + width * 3), lines = [];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) line.set([(x * seed) & 255, (y * 3 + seed * 40) & 255, ((x ^ y) + seed * 90) & 255], 1 + x * 3);
    lines.push(Buffer.from(line));
  }
  return pngFile(width, height, deflateSync(Buffer.concat(lines)));
}

// A PNG of compressed rows.
export function pngFile(width, height, data) {
  const head = Buffer.concat([u32be(width), u32be(height), Buffer.from([8, 2, 0, 0, 0])]);
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), chunk("IHDR", head), chunk("IDAT", data), chunk("IEND", Buffer.alloc(0))]);
}

// An AVI video of uncompressed frames, one color each.
export function avi(width, height, frames, fps = 4) {
  const list = (name, body) => Buffer.concat([Buffer.from("LIST"), u32(body.length + 4), Buffer.from(name), body]);
  const riff = (name, body) => Buffer.concat([Buffer.from(name), u32(body.length), pad(body, 2)]);
  const stride = Math.ceil((width * 3) / 4) * 4, size = stride * height;
  const avih = Buffer.concat([1e6 / fps, size * fps, 0, 16, frames, 0, 1, size, width, height, 0, 0, 0, 0].map((x) => u32(Math.round(x))));
  const strh = Buffer.concat([Buffer.from("vidsDIB "), ...[0, 0, 0, 1, fps, 0, frames, size, 0, 0].map(u32), Buffer.alloc(8)]);
  const strf = Buffer.concat([u32(40), u32(width), u32(height), Buffer.from([1, 0, 24, 0]), u32(0), u32(size), u32(0), u32(0), u32(0), u32(0)]);
  const movi = Array.from({ length: frames }, (_, i) => riff("00db", Buffer.alloc(size, (i * 37) & 255)));
  const body = Buffer.concat([list("hdrl", Buffer.concat([riff("avih", avih), list("strl", Buffer.concat([riff("strh", strh), riff("strf", strf)]))])), list("movi", Buffer.concat(movi))]);
  return Buffer.concat([Buffer.from("RIFF"), u32(body.length + 4), Buffer.from("AVI "), body]);
}

if (process.argv[1] === import.meta.filename) {
  const dir = process.argv[2];
  mkdirSync(dir);
  writeFileSync(join(dir, "mmproj.gguf"), projector());
  writeFileSync(join(dir, "a.png"), png(200, 100, 3));
  writeFileSync(join(dir, "a.avi"), avi(64, 48, 9));
}

export const dataUrl = (bytes, type = "image/png") => `data:${type};base64,${bytes.toString("base64")}`;
