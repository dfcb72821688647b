// Writes src/tok/unicode_tables.h from the Unicode data of node itself: character classes, and the tables of NFC.
//
//   tests/node tools/make_unicode.mjs > src/tok/unicode_tables.h
//   tests/node tools/make_unicode.mjs --check      fails when the file differs; a node with other Unicode data says SKIP
//
// JavaScript has no access to canonical combining classes. Only their order matters for NFC, and normalize("NFD")
// shows it: two marks change places when the class of the first is higher. So classes are numbered 1, 2, ... in order.
import { readFileSync } from "node:fs";

const LAST = 0x10ffff, version = process.versions.unicode;
const isSurrogate = (c) => c >= 0xd800 && c <= 0xdfff;
const isHangul = (c) => c >= 0xac00 && c <= 0xd7a3; // composed by arithmetic
const text = String.fromCodePoint;
const points = (s) => [...s].map((x) => x.codePointAt(0));
const hex = (x) => "0x" + x.toString(16).toUpperCase();

// --- tables as runs: the first code point of a run and its value
function runs(valueOf) {
  const out = [];
  for (let c = 0, last = -1; c <= LAST; c++) {
    const value = valueOf(c);
    if (value !== last) out.push([c, value]);
    last = value;
  }
  return out;
}

function classOf(c) {
  if (isSurrogate(c)) return 0;
  const s = text(c);
  return /[\p{L}\p{M}]/u.test(s) ? 1 : /\p{N}/u.test(s) ? 2 : /\p{White_Space}/u.test(s) ? 3 : 0;
}

// --- canonical combining classes
const swaps = (a, b) => a !== b && text(a, b).normalize("NFD") === text(b, a);
const LOWEST = 0x334, HIGHEST = 0x345; // marks of the classes 1 and 240
const isMark = (c) => !isSurrogate(c) && text(c).normalize("NFD") === text(c) && (swaps(c, LOWEST) || swaps(HIGHEST, c));
const marks = Array.from({ length: LAST + 1 }, (_, c) => c).filter(isMark);
const classes = []; // a mark of each class, in order
for (const m of marks) {
  if (classes.some((k) => !swaps(k, m) && !swaps(m, k))) continue;
  const at = classes.findIndex((k) => swaps(k, m));
  classes.splice(at < 0 ? classes.length : at, 0, m);
}
const order = new Map(marks.map((m) => [m, 1 + classes.findIndex((k) => !swaps(k, m) && !swaps(m, k))]));
const orderOf = (c) => order.get(c) ?? 0;

// --- canonical decompositions, one step each: c = a b, or c = a with b = 0
const whole = new Map(); // NFD -> character
const decomposed = [];
for (let c = 0; c <= LAST; c++) {
  if (isSurrogate(c) || isHangul(c) || text(c).normalize("NFD") === text(c)) continue;
  decomposed.push(c);
  const nfd = text(c).normalize("NFD");
  if (points(nfd).length > 1 && !(whole.has(nfd) && text(c).normalize("NFC") !== text(c))) whole.set(nfd, c);
}
const pairOf = (c) => {
  const p = points(text(c).normalize("NFD"));
  if (p.length === 1) return [p[0], 0];
  const b = p.at(-1), rest = p.slice(0, -1), a = rest.length === 1 ? rest[0] : whole.get(text(...rest));
  if (a === undefined) throw new Error(`no decomposition of ${hex(c)} in two parts`);
  return [a, b];
};
const pairs = decomposed.map((c) => [c, ...pairOf(c)]);
const composes = ([c, a, b]) => b && text(c).normalize("NFC") === text(c) && text(a, b).normalize("NFC") === text(c);
const composed = pairs.map((p, i) => [i, p]).filter(([, p]) => composes(p))
  .sort(([, [, a1, b1]], [, [, a2, b2]]) => a1 - a2 || b1 - b2);

// --- characters that NFC may change: those that differ from their NFC, and the second ones of compositions
const seconds = new Set(composed.map(([, [, , b]]) => b));
for (let c = 0x1161; c <= 0x1175; c++) seconds.add(c); // vowels and final consonants of Hangul
for (let c = 0x11a8; c <= 0x11c2; c++) seconds.add(c);
const unstable = (c) => !isSurrogate(c) && (text(c).normalize("NFC") !== text(c) || seconds.has(c));

// The order of a character that decomposes is not needed: it is unstable, or it composes again to a starter.
const marksOf = (c) => orderOf(c) << 1 | (unstable(c) ? 1 : 0);

// --- output
function table(comment, type, name, items) {
  const lines = [];
  for (const item of items) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + item.length + 2 <= 116) lines[lines.length - 1] += " " + item + ",";
    else lines.push(item + ",");
  }
  return `/* ${comment} */\nstatic const ${type} ${name}[] = {\n${lines.map((l) => "    " + l + "\n").join("")}};\n`;
}
const output = `/* Tables of Unicode ${version}, written by tools/make_unicode.mjs; do not edit. */
/* clang-format off */
${table("First code point of a run << 2 | char_class.", "uint32_t", "class_runs", runs(classOf).map(([c, v]) => hex(c << 2 | v)))}
${table("First code point of a run << 8 | order of the combining class << 1 | NFC may change it.", "uint32_t", "mark_runs",
    runs(marksOf).map(([c, v]) => hex(c * 256 + v)))}
${table("Canonical decompositions, ascending: a character and its one or two parts.", "canonical_pair", "pairs",
    pairs.map((p) => `{${p.map(hex).join(",")}}`))}
${table("Indices in pairs[] of those that compose, ascending by both parts.", "uint16_t", "composing", composed.map(([i]) => String(i)))}/* clang-format on */
`;
if (process.argv[2] !== "--check") {
  process.stdout.write(output);
} else {
  const file = new URL("../src/tok/unicode_tables.h", import.meta.url), have = readFileSync(file, "utf8");
  const theirs = have.match(/Unicode ([0-9.]+)/)?.[1];
  if (theirs !== version) {
    console.log(`SKIP: the tables are of Unicode ${theirs}, this node has ${version}`);
  } else if (have !== output) {
    console.error("src/tok/unicode_tables.h differs from the output of tools/make_unicode.mjs");
    process.exit(1);
  }
}
