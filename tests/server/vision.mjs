// nano-vision's answers to held-out questions about generated pictures and two-frame videos: at least 90% of each class are right.
// Usage: node vision.mjs TANDEM [QUESTIONS of each class]
import { ask, avi, CLASSES } from "./draw.mjs";
import { dataUrl } from "./mmproj.mjs";
import { check, finish, post, same, serve } from "./serve.mjs";

const [tandem, number = "20"] = process.argv.slice(2), n = Number(number), TOGETHER = 4, SHARE = 0.9;
const server = await serve(tandem, ["--model", "nano-vision", "--max-lanes", String(TOGETHER)]);

async function answer(name, i) {
  const q = ask(name, i), video = q.pictures.length > 1;
  const part = video ? { type: "video_url", video_url: { url: dataUrl(avi(q.pictures), "video/x-msvideo") } } : { type: "image_url", image_url: { url: dataUrl(q.pictures[0].png()) } };
  const r = await (await post(server.url, "/v1/chat/completions", { temperature: 0, max_tokens: 40, messages: [{ role: "user", content: [part, { type: "text", text: q.question }] }] })).json();
  const text = r.choices?.[0].message.content ?? JSON.stringify(r);
  const right = new RegExp(`(^|[^\\w])${q.answer}([^\\w]|$)`).test(text);
  if (!right && process.env.VERBOSE) console.log(`  ${name} ${i}: ${q.question} ${text} (${q.answer})`);
  return right;
}

for (const name of Object.keys(CLASSES)) {
  let next = 0, right = 0;
  await Promise.all(Array.from({ length: TOGETHER }, async () => {
    while (next < n) {
      const ok = await answer(name, next++);
      right += ok;
    }
  }));
  console.log(`${name.padEnd(6)} ${right} of ${n} right`);
  // A few questions say little about a share: as many mistakes more are allowed as two standard deviations.
  const allowed = n < 200 ? n * (1 - SHARE) + 2 * Math.sqrt(n * SHARE * (1 - SHARE)) : n * (1 - SHARE);
  check(n - right <= allowed, `${name}: ${right} of ${n} answers are right, at most ${Math.floor(allowed)} may be wrong`);
}
same(await server.stop(), 0, "the server ends");
finish();
