// Every view against a server with nano under load.
import { join } from "node:path";
import { makeQwen } from "../server/qwen_model.mjs";
import { check, matches, post, same, serve, stopwatch } from "../server/serve.mjs";
import { inspect } from "./browser.mjs";
import { checkLayout, checkStructure, load } from "./stage.mjs";

const text = (page, selector) => page.locator(selector).first().innerText();
export const figure = async (page, n) => Number((await page.locator(".figure .value").nth(n).innerText()).replace(/[^\d.]/g, ""));
async function look(page, name, what) {
  await checkLayout(page, what);
  await checkStructure(page, name, what);
  await inspect(page, what);
}

// The time from the start of the navigation to the first numbers of the server, in milliseconds.
export async function firstPaint(browser, url) {
  const times = [], watch = stopwatch();
  for (let i = 0; i < 5; i++) {
    const page = await browser.open(`${url}/ui/`);
    await page.waitForSelector(".figure .value");
    times.push(await page.evaluate(() => performance.getEntriesByName("live")[0].startTime));
    await page.end("first paint");
  }
  times.sort((a, b) => a - b);
  watch.inTime(times[2], 1000, "the first live numbers are shown");
  return times[2];
}

export async function live(browser, url, { language, width, dark }) {
  const what = `live, ${language}, ${width}${dark ? ", dark" : ""}`, lanes = load(url, 3);
  const page = await browser.open(`${url}/ui/`, { language, width, dark });
  await page.waitForSelector(".lane svg.strip .accepted");
  await page.waitForFunction(() => document.querySelectorAll(".quantiles").length === 3);
  same(await page.evaluate(() => [document.documentElement.lang, document.documentElement.dataset.theme]), [language, dark ? "dark" : "light"], `${what}: language and theme`);
  check((await figure(page, 0)) > 0, `${what}: tokens per second`);
  check((await page.locator(".lane").count()) >= 1, `${what}: lanes`);
  matches(await page.locator(".lanes").innerText(), /\d/, `${what}: lanes have numbers`);
  const before = await page.locator(".latency-first_token .note").innerText();
  await page.waitForFunction((old) => document.querySelector(".latency-first_token .note")?.textContent !== old, before);
  same(await page.locator(".classes tbody tr").count(), 3, `${what}: K/V classes`);
  matches(await text(page, ".latency-first_token .quantiles"), /p50[^]*p95[^]*p99/, `${what}: quantiles`);
  check((await page.locator(".columns .column").count()) > 4, `${what}: histograms`);
  check(await page.locator("canvas").first().isVisible(), `${what}: a chart`);
  await look(page, `live ${width}`, what);
  await page.end(what);
  await lanes.stop();
}

const answered = (page, n) => page.waitForFunction((k) => document.querySelectorAll(".message.assistant[aria-busy=false] .answer-facts").length >= k, n);

export async function chat(browser, url, { language, width }) {
  const what = `chat, ${language}, ${width}`, page = await browser.open(`${url}/ui/#/chat`, { language, width });
  if (width < 700) await page.locator(".fold > summary").click();
  await page.locator(".controls select").selectOption("mtp"); // whether drafts pay on this machine or not
  await page.locator(".empty button").first().click();
  await answered(page, 1);
  const answer = await text(page, ".message.assistant .text");
  matches(answer, /85/, `${what}: the response`);
  check((await page.locator(".text .tok.m-mtp, .text .tok.m-dflash, .text .tok.m-ngram, .text .tok.m-tree").count()) > 3, `${what}: drafted tokens are tinted`);
  check((await page.locator(".text .tok.m-off").count()) > 0, `${what}: the model's own are not`);
  same(await page.evaluate(() => [...document.querySelectorAll(".text .tok")].map((x) => x.textContent).join("")), answer.replace(/\u00a0/g, " "), `${what}: the tokens are the text`);
  // the same prompt without speculation
  await page.locator(".controls input[type=checkbox]").nth(1).check();
  await page.locator(".message.assistant .tools button").nth(1).click();
  await page.waitForSelector(".verdict.good");
  same(await page.locator(".pair .answer .text").allInnerTexts(), [answer, answer], `${what}: the same text twice`);
  matches(await text(page, ".verdict"), /[\d.,]+.*[\d.,]+/, `${what}: how much faster`);
  same(await page.locator(".pair .answer").nth(1).locator(".tok:not(.m-off)").count(), 0, `${what}: nothing was drafted without speculation`);
  await look(page, `chat ${width}`, what);
  // copy, edit, regenerate, export
  await page.locator(".message.assistant .tools button").first().click();
  await page.waitForFunction((want) => navigator.clipboard.readText().then((x) => x === want), answer).catch(() => check(false, `${what}: copy`));
  await page.locator(".message.user .tools button").nth(1).click();
  await page.locator("form.message.user textarea").fill("Count from 1 to 40.");
  await page.locator("form.message.user button[type=submit]").click();
  await page.waitForFunction(() => /39/.test(document.querySelector(".message.assistant .text")?.textContent ?? ""));
  await answered(page, 1);
  const [file] = await Promise.all([page.waitForEvent("download"), page.locator(".chat-bar button").nth(1).click()]);
  const kept = JSON.parse(await (await import("node:fs/promises")).readFile(await file.path(), "utf8"));
  same(kept.messages.map((m) => m.role), ["user", "assistant"], `${what}: the exported conversation`);
  // it stays in the browser
  await page.reload();
  await page.waitForSelector(".message.assistant .text");
  matches(await text(page, ".message.user .text"), /Count from 1 to 40/, `${what}: the conversation is still there`);
  await page.end(what);
}

export async function chatMore(browser, url) {
  const page = await browser.open(`${url}/ui/#/chat`), what = "chat";
  // stop
  await page.locator(".controls input[type=number]").nth(1).fill("4000");
  await page.locator(".composer textarea").fill("Write a short story about a fox. Then write it again, and again, and again.");
  await page.evaluate(() => (window.slow = true));
  await page.locator(".composer textarea").press("Enter");
  await page.waitForSelector(".message.assistant .text");
  const stop = page.locator(".composer button.primary[type=button]");
  if (await stop.count()) await stop.click({ timeout: 2000 }).catch(() => undefined); // nano may have finished
  await page.waitForSelector(".message.assistant[aria-busy=false]");
  // thinking is folded, tools are shown and answered
  await page.locator(".controls details details summary").click();
  await page.locator(".controls input[type=checkbox]").nth(2).check();
  await page.locator(".controls textarea.mono").fill(JSON.stringify([{ type: "function", function: { name: "get_weather", description: "Current weather of a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }]));
  await page.locator(".chat-bar button").first().click();
  await page.locator(".composer textarea").fill("What is the weather in Paris?");
  await page.locator(".composer button[type=submit]").click();
  await answered(page, 1);
  const tool = page.locator(".tool");
  if (check((await tool.count()) === 1, `${what}: the model calls the tool`)) {
    matches(await tool.innerText(), /get_weather[^]*Paris/, `${what}: the call is shown`);
    await tool.locator("input").fill('{"temperature": 21}');
    await tool.locator("button").click();
    await answered(page, 2);
  }
  // a tool that is not JSON
  await page.locator(".controls textarea.mono").fill("[{");
  await page.locator(".composer textarea").fill("Hi");
  await page.locator(".composer button[type=submit]").click();
  await page.waitForSelector(".composer .problem");
  await page.end(what);
}

// Thoughts, calls and pictures, with a server's replies that are made up: nano neither thinks nor sees.
const reply = (chunks) => [...chunks.map((x) => `data: ${JSON.stringify(x)}\n\n`), "data: [DONE]\n\n"].join("");
export const delta = (d, drafts) => ({ choices: [{ index: 0, delta: d, ...(drafts ? { drafts } : {}) }] });
export const mockReply = (page, chunks) => page.route("**/v1/chat/completions", (r) => r.fulfill({ status: 200, contentType: "text/event-stream", body: reply(chunks) }));
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

export async function pictures(browser, url) {
  const what = "pictures";
  const give = (page, kind) => page.evaluate(([how, data]) => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)), files = new DataTransfer();
    files.items.add(new File([bytes], "dot.png", { type: "image/png" }));
    const to = document.querySelector(how === "drop" ? ".composer" : ".composer textarea");
    to.dispatchEvent(how === "drop" ? new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: files })
      : new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: files }));
  }, [kind, PIXEL]);
  const blind = await browser.open(`${url}/ui/#/chat`);
  await blind.waitForSelector(".composer");
  await blind.waitForFunction(() => performance.getEntriesByName(`${location.origin}/props`).length > 0);
  await give(blind, "paste");
  await blind.waitForSelector(".composer .problem");
  same(await blind.locator(".thumbs img, .composer input[type=file]").count(), 0, `${what}: a model that takes text only`);
  await blind.end(what);

  let body;
  const page = await browser.open(`${url}/ui/#/chat`, { mock: async (p) => {
    await p.route("**/props", async (r) => {
      const real = await r.fetch(), props = await real.json();
      await r.fulfill({ response: real, json: { ...props, modalities: { vision: true, audio: false } } });
    });
    await p.route("**/v1/chat/completions", async (r) => {
      body = JSON.parse(r.request().postData());
      await r.fulfill({ status: 200, contentType: "text/event-stream", body: reply([delta({ content: "A dot." }, [["off", 2], ["mtp", 4]])]) });
    });
  } });
  await page.waitForSelector(".composer input[type=file]", { state: "attached" });
  await give(page, "drop");
  await give(page, "paste");
  await page.locator(".composer input[type=file]").setInputFiles({ name: "x.png", mimeType: "image/png", buffer: Buffer.from(PIXEL, "base64") });
  await page.waitForFunction(() => document.querySelectorAll(".thumbs img").length === 3);
  await page.locator(".thumbs button").first().click();
  await page.waitForFunction(() => document.querySelectorAll(".thumbs img").length === 2);
  await page.locator(".composer textarea").fill("What is this?");
  await page.locator(".composer button[type=submit]").click();
  await page.waitForFunction(() => /A dot/.test(document.querySelector(".message.assistant .text")?.textContent ?? ""));
  same(body.messages.at(-1).content, [...Array(2).fill({ type: "image_url", image_url: { url: `data:image/png;base64,${PIXEL}` } }), { type: "text", text: "What is this?" }], `${what}: the request`);
  same(await page.locator(".message.user img").count(), 2, `${what}: are shown`);
  await page.end(what);
}

// A model that sees and thinks, if in nonsense: pictures reach it, and its text is the same without speculation.
export async function sight(browser, tandem) {
  const server = await serve(tandem, ["-m", makeQwen("qwen35-vision"), "--ctx", "4096"]), images = join(import.meta.dirname, "../golden/vision-images");
  const page = await browser.open(`${server.url}/ui/#/chat`);
  await page.locator(".composer input[type=file]").setInputFiles([join(images, "photo.jpg"), join(images, "alpha.png")]);
  await page.waitForFunction(() => document.querySelectorAll(".thumbs img").length === 2);
  await page.getByLabel("Maximum tokens").fill("48");
  await page.getByLabel("Compare with speculation off").check();
  await page.locator(".composer textarea").fill("What is this?");
  await page.locator(".composer textarea").press("Enter");
  await page.waitForSelector(".verdict.good");
  same(await page.locator(".message .problem").count(), 0, "pictures are accepted");
  same(await page.locator(".message.user img").evaluateAll((all) => all.map((x) => x.naturalWidth > 0)), [true, true], "and shown");
  await page.reload();
  await page.waitForSelector(".verdict.good");
  same(await page.locator(".message.user img").count(), 2, "and kept with the conversation");
  await page.end("a model that sees");
  await server.stop();
}

export async function thoughts(browser, url) {
  const page = await browser.open(`${url}/ui/#/chat`, { mock: (p) => mockReply(p, [delta({ reasoning_content: "First, " }), delta({ reasoning_content: "add the ones." }),
    delta({ content: "85" }, [["dflash", 2]]), delta({ tool_calls: [{ index: 0, id: "c1", function: { name: "note", arguments: '{"x":' } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: "1}" } }] })]) });
  await page.locator(".composer textarea").fill("Think.");
  await page.locator(".composer textarea").press("Enter");
  await page.waitForSelector(".tool");
  same(await page.locator("details.thought[open]").count(), 0, "thoughts are folded");
  await page.locator("details.thought summary").click();
  same(await page.locator("details.thought .text").innerText(), "First, add the ones.", "thoughts unfold");
  matches(await page.locator(".tool").innerText(), /note[^]*\{"x":1\}/, "a call in pieces");
  await page.end("thoughts");
}

export async function why(browser, url, { language, width }) {
  const what = `why, ${language}, ${width}`;
  await Promise.all([0, 1, 2].map((i) => post(url, "/v1/chat/completions", { messages: [{ role: "user", content: "Count from 1 to 40." }], max_tokens: 200, seed: i }, { headers: { "x-request-id": `why-${i}` } }).then((r) => r.text())));
  const page = await browser.open(`${url}/ui/#/why`, { language, width });
  await page.waitForSelector(".decision .options");
  const all = await page.locator(".decision").count();
  check(all >= 6, `${what}: decisions (${all})`);
  matches(await text(page, ".decision:has(.options)"), /\d+.*(µs|ms)[^]*%/, `${what}: the cost of a row and the survival`);
  check((await page.locator(".decision .options li").count()) >= 3, `${what}: alternatives`);
  await page.waitForSelector("canvas");
  await look(page, `why ${width}`, what);
  await page.locator("input[type=search]").fill("why-1");
  await page.waitForFunction(() => [...document.querySelectorAll(".decision .id")].every((x) => x.textContent === "why-1") && document.querySelectorAll(".decision").length > 0);
  await page.locator("input[type=search]").fill("no-such");
  await page.waitForSelector(".empty");
  await page.end(what);
}

export async function settings(browser, url, { language, width }) {
  const what = `settings, ${language}, ${width}`, page = await browser.open(`${url}/ui/#/settings`, { language, width });
  const get = async () => (await (await fetch(`${url}/api/models/nano/settings`)).json()).settings, before = await get();
  await page.waitForSelector(".setting");
  same(await page.locator(".setting").count(), Object.keys(before).length, `${what}: every setting`);
  matches(await page.locator(".setting:has(#set-dflash_max_ctx)").innerText(), /512/, `${what}: the trained length bounds the drafter's context`);
  await look(page, `settings ${width}`, what);
  // all or nothing: a wrong value cannot be sent, and a refused one changes nothing
  const apply = page.locator("form.settings button[type=submit]");
  await page.locator("#set-queue_max").fill("77");
  await page.locator("#set-kv_cap").fill("7");
  check(await apply.isDisabled(), `${what}: a value out of bounds`);
  await page.locator("#set-kv_cap").fill("0.9");
  await page.locator("#set-dflash_draft_quant_weight_bits").fill("5");
  await apply.click();
  await page.waitForSelector("form.settings .problem");
  same((await get()).queue_max.value, before.queue_max.value, `${what}: all or nothing`);
  await page.locator("#set-dflash_draft_quant_weight_bits").fill("8");
  await page.locator("#set-dflash_max_concurrent").fill("0");
  await apply.click();
  await page.waitForFunction(() => document.querySelector("#set-queue_max").value === "77" && !document.querySelector(".setting.changed"));
  same([(await get()).queue_max.value, (await get()).dflash_max_concurrent.value], [77, 0], `${what}: applied together`);
  await page.locator("form.settings .sticky button").nth(2).click();
  await page.waitForFunction((x) => document.querySelector("#set-queue_max").value === x, String(before.queue_max.value));
  same((await get()).dflash_max_concurrent.value, "auto", `${what}: undone`);
  // park a drafter, then the model
  const button = (name) => page.locator(`.parts li:has-text("${name}") button`), state = (name) => page.locator(`.parts li:has-text("${name}") .dot`);
  await button("nano-mtp").click();
  await state("nano-mtp").and(page.locator(".s-parked")).waitFor();
  await button("nano-mtp").click();
  await state("nano-mtp").and(page.locator(".s-loaded")).waitFor();
  await page.locator(".parts li button").first().click();
  await page.locator(".parts li .dot.s-parked").first().waitFor();
  await page.locator(".parts li button").first().click();
  await page.locator(".parts li:first-child .dot.s-loaded").waitFor();
  await page.locator(".sticky input[type=search]").fill("queue_timeout");
  await page.waitForFunction(() => document.querySelectorAll(".setting").length === 1);
  await page.end(what);
}

export async function bench(browser, url, { language, width }) {
  const what = `bench, ${language}, ${width}`, page = await browser.open(`${url}/ui/#/bench`, { language, width });
  await page.waitForSelector("form");
  const field = (label) => page.locator(".fields input").nth(label);
  await field(0).fill("1, 2");
  await field(2).fill("16");
  await field(4).fill("2");
  await page.locator("form button[type=submit]").click();
  await page.waitForSelector(".ratio");
  check((await page.locator(".ratio").count()) === 4, `${what}: ratios of two methods, for one and two users, with a control`);
  same(await page.locator(".verdict.good").count(), 1, `${what}: the same text`);
  check((await page.locator(".history li").count()) >= 1, `${what}: is in the history`);
  await look(page, `bench ${width}`, what);
  for (const [i, kind] of ["json", "svg"].entries()) {
    const [file] = await Promise.all([page.waitForEvent("download"), page.locator(".card-head .actions button").nth(i).click()]);
    const data = await (await import("node:fs/promises")).readFile(await file.path(), "utf8");
    if (kind === "json") same(JSON.parse(data).cells.map((c) => c.method), ["off", "off", "auto", "off", "off", "auto"], `${what}: JSON`);
    else matches(data, /^<svg[^]*<\/svg>\n$/, `${what}: SVG`);
  }
  // own prompts, and one that is stopped
  await page.locator("form select").selectOption("own");
  await page.locator("form textarea").fill("What is 27 plus 58?\n\nCount from 1 to 40.");
  await field(4).fill("50");
  await page.locator("form button[type=submit]").click();
  await page.waitForSelector("progress");
  await page.waitForFunction(() => document.querySelector("progress")?.value > 0);
  await page.locator("form .row button").click();
  await page.waitForSelector("form button[type=submit]");
  await page.end(what);
}

export async function sessions(browser, url, { language, width }) {
  const what = `sessions, ${language}, ${width}`, name = `s-${language}-${width}`;
  await (await post(url, "/v1/chat/completions", { messages: [{ role: "user", content: "What is 27 plus 58?" }], session: name })).text();
  const page = await browser.open(`${url}/ui/#/sessions`, { language, width });
  await page.locator("form input").fill(name);
  await page.locator("form button").click();
  const row = page.locator(`tr:has-text("${name}")`);
  await row.waitFor();
  await row.locator("button").first().click();
  await page.waitForFunction((n) => document.querySelector("p.good")?.textContent.includes(n), name);
  await look(page, `sessions ${width}`, what);
  await row.locator("button").nth(1).click();
  await row.waitFor({ state: "detached" });
  await page.locator("form input").fill("unknown-one");
  await page.locator("form button").click();
  await page.waitForSelector(".problem");
  await page.end(what);
}

export async function help(browser, url, { language, width }, agentsOf) {
  const what = `help, ${language}, ${width}`, page = await browser.open(`${url}/ui/#/help`, { language, width });
  await page.waitForSelector(".code");
  await look(page, `help ${width}`, what);
  const shown = [];
  for (const b of await page.locator("button[aria-pressed]").all()) {
    await b.click();
    shown.push([await b.innerText(), ...(await page.locator(".card:has(button[aria-pressed]) pre").allInnerTexts())]);
  }
  same(shown.map(([name]) => name), Object.keys(agentsOf), `${what}: the agents of docs/agents.md`);
  for (const [name, ...codes] of shown) same(codes.map((c) => c.trim()), agentsOf[name].map((c) => c.replaceAll("http://127.0.0.1:8080", url)), `${what}: ${name}`);
  await page.end(what);
}

// A server whose model runs on GPUs, made up from the numbers of this one.
export async function gpu(browser, url) {
  const stats = await (await fetch(`${url}/api/stats`)).json();
  stats.gpus = [{ name: "GPU <b>\u202eA", temperature_c: 61, power_w: 312.5, utilisation: 0.97, memory_bytes: 80e9, memory_used_bytes: 50e9 },
    { name: "B", temperature_c: null, power_w: null, utilisation: null, memory_bytes: null, memory_used_bytes: null }];
  const page = await browser.open(`${url}/ui/`, { width: 390, mock: (p) => p.route("**/api/stats?*", (r) => r.fulfill({ status: 200, contentType: "text/event-stream",
    body: `data: ${JSON.stringify(stats)}\n\n` })) });
  await page.waitForSelector(".figure.gpu");
  same(await page.locator(".figure.gpu").allInnerTexts().then((all) => all.map((x) => x.replace(/\s+/g, " ").trim())),
    ["GPU <b>⟨U+202E⟩A 50.0 GB of 80.0 GB 61 °C · 313 W · 97%", "B –"], "GPUs: memory, temperature, power, load; and one that reports nothing");
  await checkLayout(page, "GPUs");
  await inspect(page, "GPUs");
  await page.end("GPUs");
}
