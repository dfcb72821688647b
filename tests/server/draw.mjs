// Draws the held-out pictures of nano-vision: sizes, positions, shades and fonts that its training does not have (train/vision_data.py).
import { readFileSync, writeFileSync } from "node:fs";
import { deflateSync, inflateSync } from "node:zlib";
import { pngFile } from "./mmproj.mjs";

export const SHAPES = ["circle", "square", "triangle", "star", "cross", "ring"];
const COLORS = {
  red: [[255, 0, 0], [220, 40, 40], [200, 20, 30]], green: [[0, 128, 0], [40, 160, 60], [0, 190, 40]], blue: [[0, 0, 255], [40, 80, 220], [30, 110, 230]],
  yellow: [[255, 255, 0], [245, 220, 50]], orange: [[255, 165, 0], [245, 140, 30]], purple: [[128, 0, 128], [140, 50, 180]], pink: [[255, 192, 203], [245, 150, 190]],
  black: [[0, 0, 0], [25, 25, 25]], white: [[255, 255, 255], [240, 240, 240]],
};
export const NAMES = Object.keys(COLORS), MOVES = ["left", "right", "up", "down"];

// --- numbers that depend on a seed
export function random(seed) {
  let x = seed | 0;
  const next = () => {
    x = (x + 0x6d2b79f5) | 0;
    let t = Math.imul(x ^ (x >>> 15), 1 | x);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const r = { next, in: (a, b) => a + (b - a) * next(), int: (a, b) => a + Math.floor((b - a + 1) * next()), of: (list) => list[Math.floor(list.length * next())] };
  r.some = (list, n) => {
    const rest = [...list];
    return Array.from({ length: n }, () => rest.splice(Math.floor(rest.length * next()), 1)[0]);
  };
  return r;
}
// Training has no size that is 3 modulo 7, no position that is 5 modulo 11 (in thousandths) and no color whose sum is 0 modulo 5.
const snap = (v, n, rest) => v + ((((rest - v) % n) + n) % n);
const size = (v) => snap(Math.round(1000 * v), 7, 3) / 1000, place = (v) => snap(Math.round(1000 * v), 11, 5) / 1000;
function shade(r, name) {
  const a = r.of(COLORS[name]), b = r.of(COLORS[name]), t = r.next();
  const c = a.map((p, i) => Math.min(255, Math.max(0, Math.round(p + (b[i] - p) * t + r.in(-12, 12)))));
  c[2] = snap(c[0] + c[1] + c[2], 5, 0) - c[0] - c[1];
  if (c[2] > 255) c[2] -= 5;
  return c;
}

// --- outlines: whether a point belongs to a shape of half size 1
const around = (n, radii) => Array.from({ length: n }, (_, i) => [radii[i % radii.length] * Math.sin((2 * Math.PI * i) / n), -radii[i % radii.length] * Math.cos((2 * Math.PI * i) / n)]);
const POLYGONS = { triangle: around(3, [1]), star: around(10, [1, 0.42]) };
function within(p, x, y) {
  let inside = false;
  for (let i = 0, j = p.length - 1; i < p.length; j = i++)
    if (p[i][1] > y !== p[j][1] > y && x < ((p[j][0] - p[i][0]) * (y - p[i][1])) / (p[j][1] - p[i][1]) + p[i][0]) inside = !inside;
  return inside;
}
const INSIDE = {
  circle: (x, y) => x * x + y * y < 1,
  square: (x, y) => Math.max(Math.abs(x), Math.abs(y)) < 0.8,
  cross: (x, y) => Math.min(Math.abs(x), Math.abs(y)) < 0.3 && Math.max(Math.abs(x), Math.abs(y)) < 1,
  ring: (x, y) => Math.abs(Math.hypot(x, y) - 0.78) < 0.22,
  box: (x, y) => Math.max(Math.abs(x), Math.abs(y)) < 1,
  triangle: (x, y) => within(POLYGONS.triangle, x, y),
  star: (x, y) => within(POLYGONS.star, x, y),
};

// Digits as distances to their edge, 40 x 40 of -127 .. 127 hundredths of half their height; the table is 1.25 high.
const GLYPH = 40, REACH = 1.25;
const glyphs = new Int8Array(inflateSync(readFileSync(new URL("../golden/nano-vision/digits", import.meta.url))));
export const FONTS = glyphs.length / (10 * GLYPH * GLYPH);
function digit(font, d) {
  const at = (font * 10 + d) * GLYPH * GLYPH;
  return (x, y) => {
    const u = ((x / REACH + 1) * GLYPH) / 2 - 0.5, v = ((y / REACH + 1) * GLYPH) / 2 - 0.5, i = Math.floor(u), j = Math.floor(v);
    if (i < 0 || j < 0 || i > GLYPH - 2 || j > GLYPH - 2) return false;
    const g = (a, b) => glyphs[at + (j + b) * GLYPH + i + a], p = u - i, q = v - j;
    return (g(0, 0) * (1 - p) + g(1, 0) * p) * (1 - q) + (g(0, 1) * (1 - p) + g(1, 1) * p) * q < 0;
  };
}

class Picture {
  constructor(width, height, background) {
    this.w = width;
    this.h = height;
    this.rgb = Buffer.alloc(width * height * 3);
    for (let i = 0; i < width * height; i++) this.rgb.set(background, i * 3);
  }
  // Draws a shape with its center and half sizes in pixels, turned by an angle; edges are mixed from 4 x 4 points of a pixel.
  put(inside, x, y, rx, ry, angle, rgb) {
    const reach = Math.max(rx, ry) * 1.45, c = Math.cos(angle), s = Math.sin(angle);
    for (let j = Math.max(0, Math.floor(y - reach)); j <= Math.min(this.h - 1, y + reach); j++)
      for (let i = Math.max(0, Math.floor(x - reach)); i <= Math.min(this.w - 1, x + reach); i++) {
        let n = 0;
        for (let k = 0; k < 16; k++) {
          const dx = i + ((k & 3) + 0.5) / 4 - x, dy = j + ((k >> 2) + 0.5) / 4 - y;
          n += inside((c * dx + s * dy) / rx, (-s * dx + c * dy) / ry);
        }
        if (n) for (let k = 0, at = (j * this.w + i) * 3; k < 3; k++) this.rgb[at + k] += Math.round(((rgb[k] - this.rgb[at + k]) * n) / 16);
      }
  }
  png() {
    const rows = Array.from({ length: this.h }, (_, y) => Buffer.concat([Buffer.alloc(1), this.rgb.subarray(y * this.w * 3, (y + 1) * this.w * 3)]));
    return pngFile(this.w, this.h, deflateSync(Buffer.concat(rows)));
  }
}

// An AVI video of two pictures.
export function avi(pictures, fps = 2) {
  const u32 = (x) => { const b = Buffer.alloc(4); b.writeUInt32LE(x); return b; };
  const list = (name, body) => Buffer.concat([Buffer.from("LIST"), u32(body.length + 4), Buffer.from(name), body]);
  const riff = (name, body) => Buffer.concat([Buffer.from(name), u32(body.length), body, Buffer.alloc(body.length % 2)]);
  const { w, h } = pictures[0], stride = Math.ceil((w * 3) / 4) * 4, bytes = stride * h;
  const frame = (p) => {
    const out = Buffer.alloc(bytes);
    for (let y = 0; y < h; y++)
      for (let x = 0; x < w; x++)
        for (let c = 0; c < 3; c++) out[(h - 1 - y) * stride + x * 3 + 2 - c] = p.rgb[(y * w + x) * 3 + c];
    return out;
  };
  const avih = Buffer.concat([1e6 / fps, bytes * fps, 0, 16, pictures.length, 0, 1, bytes, w, h, 0, 0, 0, 0].map((x) => u32(Math.round(x))));
  const strh = Buffer.concat([Buffer.from("vidsDIB "), ...[0, 0, 0, 1, fps, 0, pictures.length, bytes, 0, 0].map(u32), Buffer.alloc(8)]);
  const strf = Buffer.concat([u32(40), u32(w), u32(h), Buffer.from([1, 0, 24, 0]), u32(0), u32(bytes), u32(0), u32(0), u32(0), u32(0)]);
  const body = [list("hdrl", Buffer.concat([riff("avih", avih), list("strl", Buffer.concat([riff("strh", strh), riff("strf", strf)]))])), list("movi", Buffer.concat(pictures.map((p) => riff("00db", frame(p)))))];
  return Buffer.concat([Buffer.from("RIFF"), u32(Buffer.concat(body).length + 4), Buffer.from("AVI "), ...body]);
}

// The picture of README.md: `node draw.mjs FILE`.
function example() {
  const p = new Picture(320, 240, [255, 255, 255]);
  p.put(INSIDE.circle, 80, 84, 45, 45, 0, [224, 36, 36]);
  p.put(INSIDE.square, 226, 82, 55, 55, 0.1, [34, 84, 222]);
  p.put(INSIDE.star, 158, 178, 48, 48, 0.2, [245, 200, 20]);
  return p;
}
if (process.argv[1] === import.meta.filename) writeFileSync(process.argv[2], example().png());

// --- scenes
function canvas(r) {
  const aspect = r.next() < 0.4 ? 1 : 2 ** r.in(-0.9, 0.9), side = r.int(110, 420);
  const w = Math.round(side * Math.max(1, aspect)), h = Math.round(side * Math.max(1, 1 / aspect)), x = r.next();
  const v = x < 0.5 ? 255 : x < 0.8 ? r.int(205, 240) : x < 0.9 ? 0 : r.int(25, 60);
  const hidden = v > 225 ? ["white", "pink"] : v > 200 ? ["white"] : ["black"];
  return { picture: new Picture(w, h, [v, v, v]), side: Math.min(w, h), w, h, names: NAMES.filter((n) => !hidden.includes(n)), dark: v < 128 };
}
const turned = (r, shape) => ({ square: r.in(-0.15, 0.15), triangle: r.in(-0.4, 0.4), cross: r.in(-0.12, 0.12), star: r.in(0, 6.28) })[shape] ?? 0;

function places(r, c, n, low, high, gap = 1.15) {
  for (;; high *= 0.9, low = Math.min(low, high * 0.8)) {
    const out = [];
    for (let k = 0; k < 80 && out.length < n; k++) {
      const s = size(r.in(low, high)), m = (s * c.side * 1.12), x = place(r.in(m / c.w, 1 - m / c.w)) * c.w, y = place(r.in(m / c.h, 1 - m / c.h)) * c.h;
      if (out.every((o) => Math.hypot(x - o.x, y - o.y) > gap * (s * c.side + o.r))) out.push({ x, y, r: s * c.side });
    }
    if (out.length === n) return out;
  }
}
const put = (r, c, shape, color, at) => c.picture.put(INSIDE[shape], at.x, at.y, at.r, at.r, turned(r, shape), shade(r, color));

function objects(r, about) {
  const c = canvas(r), n = r.of([1, 1, 2, 3, 4]), shapes = r.some(SHAPES, n), colors = r.some(c.names, n);
  const at = places(r, c, n, ...(n === 1 ? [0.1, 0.4] : n === 2 ? [0.09, 0.22] : [0.08, 0.17]));
  shapes.forEach((s, i) => put(r, c, s, colors[i], at[i]));
  const [shape, color] = [shapes[0], colors[0]];
  const question = about === "shape" ? r.of([`What shape is the ${color} object?`, `Which shape is ${color}?`, ...(n === 1 ? ["What shape is this?", "What shape is in the picture?"] : [])])
    : r.of([`What color is the ${shape}?`, `What is the color of the ${shape}?`, ...(n === 1 ? ["What color is the object?"] : [])]);
  return { pictures: [c.picture], question, answer: about === "shape" ? shape : color };
}

function counts(r) {
  const c = canvas(r), n = r.int(1, 5), shape = r.of(SHAPES), color = r.of(c.names);
  const half = n <= 3 ? r.in(0.09, 0.18) : r.in(0.08, 0.14);
  places(r, c, n, half * 0.87, half, 1.32).forEach((at) => put(r, c, shape, color, at));
  const things = shape === "cross" ? "crosses" : `${shape}s`;
  return { pictures: [c.picture], question: r.of([`How many ${things} are there?`, `How many ${things} do you see?`, `Count the ${things}.`]), answer: String(n) };
}

function digits(r) {
  const c = canvas(r), text = String(r.next() < 0.5 ? r.int(0, 9) : r.int(10, 99)), font = r.int(0, FONTS - 1), half = size(r.in(0.14, text.length === 1 ? 0.38 : 0.27));
  const wide = half * 0.8 * text.length, mx = (wide * c.side) / c.w, my = (half * c.side) / c.h, rgb = shade(r, r.of(c.names)), angle = r.in(-0.1, 0.1);
  const x = place(r.in(Math.min(0.5, mx), Math.max(0.5, 1 - mx))) * c.w, y = place(r.in(my, 1 - my)) * c.h, step = half * c.side * 1.4;
  [...text].forEach((d, i) => {
    const off = (i - (text.length - 1) / 2) * step;
    c.picture.put(digit(font, Number(d)), x + off * Math.cos(angle), y + off * Math.sin(angle), half * c.side, half * c.side, angle, rgb);
  });
  return { pictures: [c.picture], question: r.of(["What number is this?", "What number do you see?", "Which number is shown?", ...(text.length === 1 ? ["What digit is this?", "Which digit do you see?"] : [])]), answer: text };
}

function bars(r) {
  const c = canvas(r), n = r.int(2, 6), colors = r.some(c.names, n), top = r.in(0.55, 0.82), tall = r.int(0, n - 1), base = r.in(0.88, 0.95);
  const heights = colors.map((_, i) => size(i === tall ? top : r.in(0.12, top - 0.08))), left = r.in(0.06, 0.18), right = r.in(0.82, 0.95), step = (right - left) / n, half = (step * r.in(0.45, 0.85)) / 2;
  const box = (x, y, rx, ry, rgb) => {
    for (let j = Math.max(0, Math.round((y - ry) * c.h)); j < Math.min(c.h, Math.round((y + ry) * c.h)); j++)
      for (let i = Math.max(0, Math.round((x - rx) * c.w)); i < Math.min(c.w, Math.round((x + rx) * c.w)); i++) c.picture.rgb.set(rgb, (j * c.w + i) * 3);
  };
  const ink = c.dark ? [230, 230, 230] : [40, 40, 40];
  if (r.next() < 0.7) box((left + right) / 2, base + 0.008, (right - left) / 2 + 0.02, 0.008, ink);
  colors.forEach((color, i) => box(left + (i + 0.5) * step, base - heights[i] / 2, half, heights[i] / 2, shade(r, color)));
  return { pictures: [c.picture], question: r.of(["Which bar is the tallest?", "What color is the tallest bar?"]), answer: colors[tall] };
}

function moves(r) {
  const c = canvas(r), shape = r.of(SHAPES), half = size(r.in(0.08, 0.2)), way = r.int(0, 3), rgb = shade(r, r.of(c.names)), angle = turned(r, shape);
  const mx = (half * 1.12 * c.side) / c.w, my = (half * 1.12 * c.side) / c.h, along = way < 2 ? mx : my, gap = r.in(0.16, Math.min(0.5, 1 - 2.1 * along)), cross = way < 2 ? my : mx;
  const a = r.in(along, 1 - along - gap), fixed = r.in(cross, 1 - cross), slip = Math.min(Math.max(fixed + r.in(-0.15, 0.15) * gap, cross), 1 - cross);
  const from = way % 2 ? a : a + gap, to = way % 2 ? a + gap : a, points = way < 2 ? [[from, fixed], [to, slip]] : way === 3 ? [[fixed, from], [slip, to]] : [[fixed, from], [slip, to]];
  const pictures = points.map(([x, y]) => {
    const p = new Picture(c.w, c.h, c.picture.rgb.subarray(0, 3));
    p.put(INSIDE[shape], place(x) * c.w, place(y) * c.h, half * c.side, half * c.side, angle, rgb);
    return p;
  });
  return { pictures, question: `${r.of(["Which way does", "In which direction does"])} the ${shape} move?`, answer: MOVES[way] };
}

// Returns question i of a class: pictures (of a motion two, else one), the question, and the word or number of the answer.
export const CLASSES = { shape: (r) => objects(r, "shape"), color: (r) => objects(r, "color"), count: counts, digit: digits, bar: bars, move: moves };
export const ask = (name, i) => CLASSES[name](random(1000 * Object.keys(CLASSES).indexOf(name) + i * 7919 + 17));
