// The SDKs with images and videos, on nano with a projector of random weights (mmproj.mjs): every form of a part, tokens in the usage,
// prefix hits with the same image only, streams, speculation, refusals.
// Usage: node pictures.mjs TANDEM
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText } from "ai";
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { avi, dataUrl, makeProjector, png } from "./mmproj.mjs";
import { check, errorOf, finish, group, matches, post, same, serve } from "./serve.mjs";

const [tandem] = process.argv.slice(2);
const mmproj = makeProjector(), dir = join(dirname(mmproj), "media");
mkdirSync(dir);
writeFileSync(join(dir, "a.png"), png(200, 100, 7));
writeFileSync(join(dirname(mmproj), "secret.png"), png(200, 100, 8));
symlinkSync("../secret.png", join(dir, "link.png"));
const server = await serve(tandem, ["--mmproj", mmproj, "--ctx", "4096", "--step-tokens", "2048", "--media-dir", dir, "--set", "media_max_items=6"]);
const openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: server.url, apiKey: "none", maxRetries: 0 });
const ollama = new Ollama({ host: server.url });
const ai = createOpenAICompatible({ name: "tandem", baseURL: `${server.url}/v1`, includeUsage: true });

const QUESTION = "What is 27 plus 58?", model = "nano", base = { model, temperature: 0, max_tokens: 64 };
const wide = png(200, 100, 3), other = png(200, 100, 4), clip = avi(64, 48, 9);
// Soft tokens of a picture: budget, and of the clip: 9 frames of 70. 200 x 100 pixels: f = sqrt(B * 2304 / 20000).
const tokensOf = (b) => { const f = Math.sqrt((b * 2304) / 20000); return Math.floor((f * 100) / 48) * Math.floor((f * 200) / 48); };
const CLIP = (() => { const f = Math.sqrt((70 * 2304) / (64 * 48)); return 9 * Math.floor((f * 48) / 48) * Math.floor((f * 64) / 48); })();
const image = (bytes, detail) => ({ type: "image_url", image_url: { url: dataUrl(bytes), ...(detail && { detail }) } });
const video = (bytes) => ({ type: "video_url", video_url: { url: dataUrl(bytes, "video/x-msvideo") } });
const ask = (...parts) => [{ role: "user", content: [...parts, { type: "text", text: QUESTION }] }];
const chat = (messages, more = {}) => openai.chat.completions.create({ ...base, messages, ...more });
const details = (r) => [r.usage.prompt_tokens_details.image_tokens, r.usage.prompt_tokens_details.video_tokens];
const textTokens = (await chat([{ role: "user", content: QUESTION }])).usage.prompt_tokens;

await group("parts of chat completions", async () => {
  for (const [detail, budget] of [[undefined, 280], ["auto", 280], ["low", 70], ["high", 1120]]) {
    const r = await chat(ask(image(wide, detail)));
    same(details(r), [tokensOf(budget), 0], `tokens with detail ${detail}`);
    check(r.usage.prompt_tokens >= textTokens + tokensOf(budget) + 2, `detail ${detail}: the prompt includes the image, ${r.usage.prompt_tokens}`);
    check(r.choices[0].message.content.length > 0, "there is an answer");
  }
  same(details(await chat(ask({ type: "image_url", image_url: dataUrl(wide) }))), [tokensOf(280), 0], "image_url as a string");
  same(details(await chat(ask(image(wide, "low"), image(other, "low")))), [2 * tokensOf(70), 0], "two images");
  const v = await chat(ask(video(clip)));
  same(details(v), [0, CLIP], "a video of 9 frames");
  check(v.usage.prompt_tokens >= textTokens + CLIP + 9 * (2 + 4), "its frames have time stamps");
  const both = await chat([{ role: "user", content: [image(wide, "low"), video(clip), { type: "text", text: QUESTION }] }]);
  same(details(both), [tokensOf(70), CLIP], "both kinds");
  same((await chat([{ role: "user", content: QUESTION }])).usage.prompt_tokens_details.image_tokens, undefined, "a text has no image tokens");
});

await group("the prefix cache", async () => {
  const first = await chat(ask(image(png(96, 96, 21)))), again = await chat(ask(image(png(96, 96, 21)))), differs = await chat(ask(image(png(96, 96, 22))));
  const cached = (r) => r.usage.prompt_tokens_details.cached_tokens;
  check(cached(again) > tokensOf(70) && cached(again) > cached(first), `the same image is a hit: ${cached(first)}, then ${cached(again)}`);
  check(cached(differs) < 32, `another image is none: ${cached(differs)} of ${differs.usage.prompt_tokens}`);
  const less = await chat(ask(image(png(96, 96, 21), "low")));
  check(cached(less) < 32, `nor is another budget: ${cached(less)}`);
  same(again.choices[0].message.content, first.choices[0].message.content, "the hit does not change the text");
});

await group("stored K/V", async () => {
  const store = join(dirname(mmproj), "cache"), cached = [];
  for (const projector of [mmproj, makeProjector(2), mmproj]) {
    const s = await serve(tandem, ["--mmproj", projector, "--cache-dir", store]);
    const r = await (await post(s.url, "/v1/chat/completions", { ...base, messages: ask(image(wide)) })).json();
    cached.push(r.usage.prompt_tokens_details.cached_tokens);
    same(await s.stop(), 0, "a server with a cache ends");
  }
  check(cached[0] === 0 && cached[1] === 0 && cached[2] > tokensOf(280) / 2, `a picture is found again with the same encoder only: ${cached}`);
});

await group("streams and speculation", async () => {
  const messages = ask(image(wide)), plain = await chat(messages, { speculative: "off" }), want = plain.choices[0].message.content;
  for (const speculative of ["auto", "dflash", "tree", "mtp", "ngram"])
    same((await chat(messages, { speculative })).choices[0].message.content, want, `the text with ${speculative}`);
  let text = "", usage;
  for await (const { choices: [c], usage: u } of await chat(messages, { stream: true, stream_options: { include_usage: true } })) {
    text += c?.delta.content ?? "";
    usage = u ?? usage;
  }
  same([text, usage.prompt_tokens_details.image_tokens], [want, tokensOf(280)], "a stream");
  const several = await chat(messages, { n: 3, temperature: 1, seed: 5 });
  same([several.choices.length, several.usage.prompt_tokens, details(several)], [3, plain.usage.prompt_tokens, [tokensOf(280), 0]], "three choices count the image once");
});

await group("ai SDK", async () => {
  const messages = [{ role: "user", content: [{ type: "file", data: wide, mediaType: "image/png" }, { type: "text", text: QUESTION }] }];
  const want = (await chat(ask(image(wide)))).choices[0].message.content;
  const a = await generateText({ model: ai("nano"), temperature: 0, maxOutputTokens: 64, messages });
  same(a.text, want, "generateText");
  const b = streamText({ model: ai("nano"), temperature: 0, maxOutputTokens: 64, messages });
  same(await b.text, want, "streamText");
});

await group("responses", async () => {
  const input = (...parts) => [{ role: "user", content: [...parts, { type: "input_text", text: QUESTION }] }];
  const r = await openai.responses.create({ model, temperature: 0, max_output_tokens: 64, store: false, input: input({ type: "input_image", image_url: dataUrl(wide), detail: "low" }) });
  same([r.usage.input_tokens_details.image_tokens, r.usage.input_tokens_details.video_tokens], [tokensOf(70), 0], "input_image");
  const v = await openai.responses.create({ model, temperature: 0, max_output_tokens: 64, store: false, input: input({ type: "input_video", video_url: dataUrl(clip, "video/avi") }) });
  same(v.usage.input_tokens_details.video_tokens, CLIP, "input_video");
  const e = await errorOf(openai.responses.create({ model, store: false, input: input({ type: "input_image", file_id: "file_1" }) }), "file_id");
  matches(e.message, /input\[0\]\.content\[0\].*not stored/, "a file id is refused with its path");
});

await group("messages", async () => {
  const source = { type: "base64", media_type: "image/png", data: wide.toString("base64") }, text = { type: "text", text: QUESTION };
  const create = (messages, more) => anthropic.messages.create({ model, max_tokens: 64, temperature: 0, messages, ...more });
  const plain = await create([{ role: "user", content: [text] }]), count = (u) => u.input_tokens + u.cache_read_input_tokens;
  const r = await create([{ role: "user", content: [{ type: "image", source }, text] }]);
  check(count(r.usage) >= count(plain.usage) + tokensOf(280) + 2, `the image is counted: ${count(r.usage)}`);
  const counted = await anthropic.messages.countTokens({ model, messages: [{ role: "user", content: [{ type: "image", source }, text] }] });
  same(counted.input_tokens, count(r.usage), "count_tokens counts it as well");
  const tools = [{ name: "screenshot", input_schema: { type: "object", properties: {} } }], call = { type: "tool_use", id: "t1", name: "screenshot", input: {} };
  const result = (content) => [{ role: "user", content: "Look." }, { role: "assistant", content: [call] }, { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content }] }];
  const with_image = await create(result([{ type: "image", source }]), { tools }), without = await create(result([{ type: "text", text: "" }]), { tools });
  check(count(with_image.usage) >= count(without.usage) + tokensOf(280), "an image in the result of a tool");
  const e = await errorOf(create([{ role: "user", content: [{ type: "image", source: { type: "file", file_id: "f" } }, text] }]), "source file");
  matches(e.message, /messages\[0\]\.content\[0\].*base64/, "another source is refused");
});

await group("Ollama", async () => {
  const messages = [{ role: "user", content: QUESTION, images: [wide.toString("base64")] }], options = { temperature: 0, num_predict: 64 };
  const r = await ollama.chat({ model, messages, options, think: false }), plain = await ollama.chat({ model, messages: [{ role: "user", content: QUESTION }], options, think: false });
  check(r.prompt_eval_count >= plain.prompt_eval_count + tokensOf(280), `chat: ${r.prompt_eval_count}`);
  const g = await ollama.generate({ model, prompt: QUESTION, images: [wide.toString("base64")], options, think: false });
  check(g.prompt_eval_count >= tokensOf(280), "generate");
  check((await ollama.show({ model })).capabilities.includes("vision"), "show lists vision");
  const e = await errorOf(ollama.chat({ model, messages: [{ role: "user", content: "x", images: ["AAAA"] }] }), "no image");
  matches(e.message, /messages\[0\]\.images.*not a picture/, "bytes that are no image");
});

await group("what the model accepts", async () => {
  const get = async (path) => (await fetch(server.url + path)).json();
  same((await get("/v1/models")).data[0].input_modalities, ["text", "image", "video"], "/v1/models");
  same((await get("/props")).modalities, { vision: true, video: true, audio: false }, "/props");
  same((await get("/api/models")).data[0].input_modalities, ["text", "image", "video"], "/api/models");
});

await group("steps that are too short for the largest budget", async () => {
  const short = await serve(tandem, ["--mmproj", mmproj, "--step-tokens", "256", "--max-lanes", "8"]);
  const r = await (await post(short.url, "/v1/chat/completions", { ...base, messages: ask(image(wide, "high")) })).json();
  same(r.usage?.prompt_tokens_details.image_tokens, tokensOf(140), "the largest budget that fits into a step");
  await short.stop();
});

await group("URLs and files", async () => {
  let hits = 0;
  const web = createServer((q, r) => { hits++; r.end(wide); });
  await new Promise((done) => web.listen(0, "127.0.0.1", done));
  const refused = async (url, pattern) => matches((await errorOf(chat(ask({ type: "image_url", image_url: { url } })), url)).message, pattern, url);
  await refused(`http://127.0.0.1:${web.address().port}/a.png`, /--media-fetch is off/);
  same(details(await chat(ask({ type: "image_url", image_url: { url: `file://${dir}/a.png` } }))), [tokensOf(280), 0], "a file below --media-dir");
  await refused(`file://${dirname(dir)}/secret.png`, /not below/);
  await refused(`file://${dir}/../secret.png`, /media directory/);
  await refused(`file://${dir}/link.png`, /cannot be opened/);
  await refused(`file://${dir}/none.png`, /no such file/);
  await refused("ftp://example.org/a.png", /must begin with/);
  const fetching = await serve(tandem, ["--mmproj", mmproj, "--media-fetch"]);
  const r = await post(fetching.url, "/v1/chat/completions", { messages: ask({ type: "image_url", image_url: { url: `http://127.0.0.1:${web.address().port}/a.png` } }) });
  same([r.status, hits], [400, 0], "an address of this machine is not connected to with --media-fetch either");
  await fetching.stop();
  web.close();
});

await group("refusals", async () => {
  const refused = async (body, pattern, what) => {
    const r = await post(server.url, "/v1/chat/completions", { ...base, ...body }), j = await r.json();
    same(r.status, 400, `${what}: ${JSON.stringify(j)}`);
    matches(j.error?.message, pattern, what);
  };
  await refused({ messages: ask(image(Buffer.from("no image"))) }, /messages\[0\]\.content\[0\].*not a picture/, "bytes that are no image");
  await refused({ messages: ask(image(wide, "huge")) }, /detail must be/, "an unknown detail");
  await refused({ messages: ask({ type: "image_url", image_url: {} }) }, /no URL/, "no URL");
  await refused({ messages: ask({ type: "input_audio", input_audio: { data: "AAAA", format: "wav" } }) }, /Audio is not supported/, "audio");
  await refused({ messages: ask(...Array(7).fill(image(wide, "low"))) }, /at most 6 images and videos, got 7/, "seven images");
  await refused({ messages: ask(...Array(4).fill(image(wide, "high"))) }, /maximum context length is 4096/, "more tokens than the context");
  await refused({ messages: [{ role: "system", content: [image(wide)] }, { role: "user", content: "x" }] }, /system message/, "an image in a system message");
  const speech = await post(server.url, "/v1/audio/speech", { input: "x" });
  same(speech.status, 400, "speech");
  matches(await speech.text(), /Audio is not supported/, "speech");
});

await group("a model that reads text only", async () => {
  const plain = await serve(tandem, []), data = wide.toString("base64"), text = /This model accepts text only/;
  const bodies = {
    "/v1/chat/completions": { messages: ask(image(wide)) },
    "/v1/responses": { input: [{ role: "user", content: [{ type: "input_image", image_url: dataUrl(wide) }] }] },
    "/v1/messages": { max_tokens: 9, messages: [{ role: "user", content: [{ type: "image", source: { type: "base64", data } }] }] },
    "/api/chat": { model, messages: [{ role: "user", content: "x", images: [data] }] },
    "/api/generate": { model, prompt: "x", images: [data] },
  };
  for (const [path, body] of Object.entries(bodies)) {
    const r = await post(plain.url, path, body);
    same(r.status, 400, path);
    matches(await r.text(), text, path);
  }
  const audio = await post(plain.url, "/v1/chat/completions", { messages: ask({ type: "input_audio", input_audio: { data, format: "wav" } }) });
  matches(await audio.text(), text, "audio");
  same((await (await fetch(`${plain.url}/v1/models`)).json()).data[0].input_modalities, ["text"], "/v1/models");
  await plain.stop();
});

same(await server.stop(), 0, "the server ends well");
finish();
