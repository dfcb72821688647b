// Mutated images and videos through HTTP: every one gets a 200 or a 400 with a sentence, the memory of the server and of its decoders is
// bounded, decoders that end are replaced, and other requests are answered meanwhile. Then files that are small and decode to much,
// addresses that must not be connected to, and clients that leave.
// Usage: node media_hostile.mjs TANDEM [IMAGES] [VIDEOS]
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { deflateSync } from "node:zlib";
import { avi, dataUrl, makeProjector, png, pngFile } from "./mmproj.mjs";
import { check, finish, group, matches, post, random, same, serve, sleep, until } from "./serve.mjs";

const [tandem, nImages = "2000", nVideos = "300"] = process.argv.slice(2);
const server = await serve(tandem, ["--mmproj", makeProjector(), "--media-fetch", "--ctx", "8192"]);
const golden = join(import.meta.dirname, "../golden/vision-images");
const next = random(7), MIB = 1024;

// --- files
const u32 = (x) => { const b = Buffer.alloc(4); b.writeUInt32LE(x); return b; };
function bmp(width, height, size = 54 + width * height * 3) {
  const head = Buffer.concat([Buffer.from("BM"), u32(size), u32(0), u32(54), u32(40), u32(width), u32(height), Buffer.from([1, 0, 24, 0]), Buffer.alloc(24)]);
  return Buffer.concat([head, Buffer.alloc(Math.max(0, Math.min(size, 1 << 20) - 54), 99)]);
}
// A GIF of one color: a code to clear the table, then one code for each pixel.
function gif(width, height) {
  const bits = [], put = (x) => { for (let i = 0; i < 3; i++) bits.push((x >> i) & 1); };
  for (let i = 0; i < width * height; i++) {
    if (i % 3 === 0) put(4);
    put(1);
  }
  put(5);
  const bytes = [];
  for (let i = 0; i < bits.length; i += 8) bytes.push(bits.slice(i, i + 8).reduce((a, b, k) => a | (b << k), 0));
  const blocks = [];
  for (let i = 0; i < bytes.length; i += 255) blocks.push(Math.min(255, bytes.length - i), ...bytes.slice(i, i + 255));
  const le = (x) => [x & 255, x >> 8];
  return Buffer.from([...Buffer.from("GIF89a"), ...le(width), ...le(height), 0x80, 0, 0, 9, 9, 9, 200, 100, 50, 0x2c, 0, 0, 0, 0, ...le(width), ...le(height), 0, 2, ...blocks, 0, 0x3b]);
}
// A WebP of one color without loss, 1 x 1.
const webp = Buffer.from("UklGRhwAAABXRUJQVlA4TBAAAAAvAAAAAAcQEf0PRET/Aw==", "base64");
const images = [...readdirSync(golden).filter((f) => !f.endsWith(".json")).map((f) => readFileSync(join(golden, f))), bmp(40, 30), gif(20, 15), webp];
// Motion JPEG: the frames of an AVI file are JPEG files.
function mjpeg(frames) {
  const raw = avi(16, 16, frames), jpeg = readFileSync(join(golden, "photo.jpg")), head = raw.subarray(0, raw.indexOf("movi") - 8);
  const body = Buffer.concat(Array.from({ length: frames }, () => Buffer.concat([Buffer.from("00dc"), u32(jpeg.length), jpeg, Buffer.alloc(jpeg.length & 1)])));
  const out = Buffer.concat([head, Buffer.from("LIST"), u32(body.length + 4), Buffer.from("movi"), body]);
  out.write("MJPG", out.indexOf("vids") + 4);
  out.write("MJPG", out.indexOf("strf") + 8 + 16);
  out.writeUInt32LE(out.length - 8, 4);
  return out;
}
const videos = [avi(32, 24, 6), mjpeg(4)];

function mutate(file) {
  const b = Buffer.from(file);
  for (let n = 1 + next(3); n > 0; n--) {
    const at = next(4) ? next(Math.min(b.length, 512)) : next(b.length);
    switch (next(4)) {
      case 0: b[at] ^= 1 << next(8); break;
      case 1: b[at] = [0, 255, 127, 128][next(4)]; break;
      case 2: b.fill(next(256), at, Math.min(b.length, at + 1 + next(8))); break;
      default: if (at + 4 <= b.length) b.writeUInt32BE(next(2) ? 0xffffffff : next(1 << 20), at);
    }
  }
  return next(8) ? b : b.subarray(0, 1 + next(b.length));
}

// --- requests
const body = (parts) => ({ model: "nano", max_tokens: 2, temperature: 0, messages: [{ role: "user", content: [...parts, { type: "text", text: "Hi" }] }] });
const image = (bytes) => ({ type: "image_url", image_url: { url: dataUrl(bytes), detail: "low" } });
const video = (bytes) => ({ type: "video_url", video_url: { url: dataUrl(bytes, "video/mp4") } });
// Every 16th is answered by the model, of the others only the tokens are counted.
async function send(parts, i = 0) {
  const r = await post(server.url, i % 16 ? "/v1/chat/completions/input_tokens" : "/v1/chat/completions", body(parts));
  return { status: r.status, text: await r.text() };
}

// Processes of the server: its decoders, with their memory in KiB.
function decoders() {
  const found = [];
  for (const pid of readdirSync("/proc").filter((p) => /^\d+$/.test(p)))
    try {
      const status = readFileSync(`/proc/${pid}/status`, "utf8");
      if (Number(/PPid:\s+(\d+)/.exec(status)[1]) === server.pid) found.push({ pid, memory: Number(/VmRSS:\s+(\d+)/.exec(status)?.[1] ?? 0) });
    } catch { /* it has ended */ }
  return found;
}

async function many(n, files, part, what) {
  const statuses = {}, seen = new Set(), start = server.memory();
  let at = 0, most = 0, kids = 0, worst = 0;
  const watch = setInterval(() => {
    const d = decoders();
    d.forEach((x) => { seen.add(x.pid); worst = Math.max(worst, x.memory); });
    kids = Math.max(kids, d.length);
    most = Math.max(most, server.memory());
  }, 50);
  await Promise.all(Array.from({ length: 6 }, async () => {
    while (at < n) {
      const i = at++, file = mutate(files[i % files.length]), r = await send([part(file)], i);
      statuses[r.status] = (statuses[r.status] ?? 0) + 1;
      if (r.status !== 200 && !check(r.status === 400 && /"message":"[^"]{20,}/.test(r.text), `${what} ${i}: ${r.status} ${r.text.slice(0, 200)}`)) break;
    }
  }));
  clearInterval(watch);
  console.log(`${what}: ${JSON.stringify(statuses)}, ${seen.size} decoders, at most ${kids} at a time of ${worst >> 10} MiB; the server grew from ${start >> 10} to ${most >> 10} MiB`);
  check(statuses[200] > 0 && statuses[400] > 0, `${what}: some are used and some refused`);
  check(kids <= 2, `${what}: at most one decoder for images and one for videos`);
  check(worst < 2048 * MIB, `${what}: memory of a decoder`);
  check(most < start + 512 * MIB, `${what}: memory of the server`);
  check(server.alive(), `${what}: the server runs`);
}

await group("mutated images", () => many(Number(nImages), images, image, "images"));
const hasVideo = (await send([video(videos[0])])).status === 200;
if (hasVideo) await group("mutated videos", () => many(Number(nVideos), videos, video, "videos"));
else console.log("SKIP: this build decodes no video");

await group("files that decode to much", async () => {
  for (const [what, file, pattern] of [
    ["a bomb: 100000 x 100000", pngFile(100000, 100000, deflateSync(Buffer.alloc(1 << 20))), /at most 67108864 pixels/],
    ["60000 x 60000 of BMP", bmp(60000, 60000, 54), /pixels|damaged|cut|cannot/],
    ["131073 wide", bmp(131073, 1, 54), /131072|pixels/],
    ["4 GB of BMP", bmp(0x7fffffff, 0x7fffffff, 54), /pixels|wide|131072/],
  ]) {
    const before = server.memory(), r = await send([image(file)]);
    same(r.status, 400, `${what}: ${r.text.slice(0, 200)}`);
    matches(r.text, pattern, what);
    check(server.memory() < before + 128 * MIB, `${what}: memory of the server`);
  }
  const flat = await send([image(pngFile(8000, 8000, deflateSync(Buffer.alloc(8000 * 24001))))], 1);
  same(flat.status, 200, `8000 x 8000 of one color, in 200 kB: ${flat.text.slice(0, 200)}`);
  for (const [w, h] of [[1, 100000], [100000, 1]]) {
    const r = await send([image(png(w, h, 1))], 1);
    same(r.status, 200, `an image of ${w} x ${h}: ${r.text.slice(0, 200)}`);
  }
  if (!hasVideo) return;
  const r = await send([video(avi(4, 4, 10000, 30))], 1);
  same(r.status, 200, `a video of 10,000 frames: ${r.text.slice(0, 200)}`);
  const long = await send([video(avi(4, 4, 3, 30).fill(255, 32, 36))], 1);
  check([200, 400].includes(long.status), `a video that claims a rate of its own: ${long.status}`);
});

await group("a decoder that is killed", async () => {
  same((await send([image(png(50, 50))], 1)).status, 200, "before");
  for (const d of decoders()) process.kill(Number(d.pid), "SIGSEGV");
  const r = await send([image(png(50, 50))], 1);
  check(r.status === 200 || /decoder/.test(r.text), `meanwhile: ${r.status} ${r.text.slice(0, 200)}`);
  same((await send([image(png(50, 50))], 1)).status, 200, "a new one takes its place");
});

await group("addresses of this machine", async () => {
  let hits = 0;
  const web = createServer((q, r) => { hits++; r.end(png(4, 4)); });
  await new Promise((done) => web.listen(0, "::", done));
  const port = web.address().port;
  for (const host of ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "x@127.0.0.1"]) {
    const r = await send([{ type: "image_url", image_url: { url: `http://${host}:${port}/a.png` } }], 1);
    same(r.status, 400, `${host}: ${r.text.slice(0, 200)}`);
  }
  same(hits, 0, "none was connected to");
  web.close();
});

await group("clients that leave", async () => {
  const slow = png(6000, 6000, 5), start = Date.now();
  for (let i = 0; i < 6; i++) {
    const stop = new AbortController(), call = post(server.url, "/v1/chat/completions", body([image(slow)]), { signal: stop.signal }).catch(() => {});
    await sleep(150);
    stop.abort();
    await call;
  }
  same((await send([image(png(50, 50))])).status, 200, "the next one is answered");
  await until(async () => (await server.metrics())["tandem:num_requests_running"] !== 1, "no request is left");
  console.log(`six clients left and one stayed: ${Date.now() - start} ms`);
});

const quick = await post(server.url, "/v1/chat/completions", { messages: [{ role: "user", content: "What is 27 plus 58?" }], temperature: 0 });
matches(await quick.text(), /85/, "the model still answers");
same(await server.stop(), 0, "the server ends well");
same(decoders().length, 0, "no decoder is left");
finish();
