// The dashboard in Chromium against `tandem serve` with nano: node ui.mjs TANDEM [smoke] [--update] [--only=GROUP]
// Every view in three languages, narrow and wide, with and without keys, across restarts; axe, the policy, hostile texts.
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { join } from "node:path";
import { check, finish, group, matches, post, same, serve, sleep, until } from "../server/serve.mjs";
import { inspect, launch, program } from "./browser.mjs";
import { checkLanguages, checkSettingWords } from "./language.mjs";
import { checkLayout, dir, load, makeKeys, saveStructure } from "./stage.mjs";
import { strings } from "./strings.mjs";
import * as views from "./views.mjs";

const tandem = process.argv[2], smoke = process.argv.includes("smoke"), only = process.argv.find((x) => x.startsWith("--only="))?.slice(7);
if (!program) {
  console.log("SKIP: there is no Chromium; install Debian's package chromium");
  process.exit(process.env.CI === "true" ? 1 : 0);
}
const part = async (name, run) => (!only || name.includes(only)) && group(name, run);
const state = join(dir, "state"), flags = ["--session-dir", state];
let server = await serve(tandem, flags);
const browser = await launch();
const looks = smoke ? [{ language: "en", width: 1280 }]
  : [{ language: "en", width: 1280 }, { language: "zh-Hans", width: 1280 }, { language: "zh-Hant", width: 390 }, { language: "en", width: 390, dark: true }, { language: "zh-Hant", width: 1920, dark: true }];

await part("files", async () => {
  const page = await fetch(`${server.url}/ui/`), html = await page.text(), names = [...html.matchAll(/(?:src|href)="(\/ui\/[^"]+)"/g)].map((m) => m[1]);
  check(names.length >= 2 && names.every((n) => /-[\w-]{8}\.(js|css)$/.test(n)), `names with a hash: ${names}`);
  const policy = page.headers.get("content-security-policy");
  matches(policy, /default-src 'none'.*script-src 'self'.*require-trusted-types-for 'script'/, "the policy");
  check(!/unsafe|https?:|\*/.test(policy), `the policy has no exceptions: ${policy}`);
  check(!/<script(?![^>]*src=)|\son\w+=|\sstyle=/.test(html), "no inline script or style");
  let size = gzipSync(html).length;
  for (const path of ["/ui/", ...names]) {
    const r = await fetch(server.url + path), body = Buffer.from(await r.arrayBuffer()), tag = r.headers.get("etag");
    if (path !== "/ui/") size += gzipSync(body).length;
    check(tag && !/(src|href|url\(|import\()\s*=?["'(]\s*https?:/.test(body.toString()), `${path}: a tag, and nothing from elsewhere`);
    same((await fetch(server.url + path, { headers: { "if-none-match": tag } })).status, 304, `${path}: 304`);
  }
  check(size <= 150 * 1024, `${size} bytes compressed`);
  const root = await fetch(`${server.url}/`, { redirect: "manual", headers: { accept: "text/html" } });
  same([root.status, root.headers.get("location")], [302, "/ui/"], "/ leads browsers here");
});

// The statistics of the benchmark, against values that were computed by hand.
await part("figures", async () => {
  const { arms, pairedRatio, svgOf } = await import("../../web/src/bench.ts"), ones = (n) => Array(n).fill(1);
  same(pairedRatio([], []), null, "no pairs");
  same(pairedRatio([2, 4, 3], [1, 2, 2]), { median: 2, low: 1.5, high: 2 }, "three pairs: all of them");
  same(pairedRatio([7, 1, 2, 3, 4, 5, 6], ones(7)), { median: 4, low: 1, high: 7 }, "seven pairs: 98%");
  same(pairedRatio([9, 1, 2, 3, 4, 5, 6, 7, 8], ones(9)), { median: 5, low: 2, high: 8 }, "nine pairs: 96%");
  same(pairedRatio([1, 2], [0, 1]), { median: 2, low: 2, high: 2 }, "a pair without a base");
  const cell = (concurrency, method, x) => ({ concurrency, method, tokens_per_s_each: [x, x] });
  const result = { cells: [cell(1, "off", 10), cell(1, "off", 11), cell(1, "auto", 20), cell(4, "off", 5), cell(4, "auto", 4)] };
  same(arms(result).map((a) => [a.control, a.ratio?.median ?? 1]), [[false, 1], [true, 1.1], [false, 2], [false, 1], [false, 0.8]], "each method against the first of as many users");
  const svg = svgOf(result, () => `<b>&"`, "</svg><script>");
  check(!/<b>|<script>/.test(svg) && (svg.match(/<circle/g) ?? []).length === 3, "names in the plot are text");
});

await part("languages", async () => {
  checkLanguages();
  await checkSettingWords(server.url);
});

for (const at of looks) {
  await part(`live ${at.language} ${at.width}`, () => views.live(browser, server.url, at));
  await part(`chat ${at.language} ${at.width}`, () => views.chat(browser, server.url, at));
  if (smoke) break;
  await part(`why ${at.language} ${at.width}`, () => views.why(browser, server.url, at));
  await part(`settings ${at.language} ${at.width}`, () => views.settings(browser, server.url, at));
  await part(`bench ${at.language} ${at.width}`, () => views.bench(browser, server.url, at));
  await part(`sessions ${at.language} ${at.width}`, () => views.sessions(browser, server.url, at));
  await part(`help ${at.language} ${at.width}`, () => views.help(browser, server.url, at, agents()));
}

// The code blocks of docs/agents.md by agent.
function agents() {
  const out = {};
  for (const section of readFileSync(join(import.meta.dirname, "../../docs/agents.md"), "utf8").split(/^## /m).slice(1)) {
    const codes = [...section.matchAll(/^```\w+\n([^]*?)\n```$/gm)].map((m) => m[1]);
    if (codes.length) out[section.split("\n")[0]] = codes;
  }
  return out;
}

let paint = 0;
if (!smoke) {
  await part("first paint", async () => (paint = await views.firstPaint(browser, server.url)));
  await part("chat more", () => views.chatMore(browser, server.url));
  await part("pictures", () => views.pictures(browser, server.url));
  await part("sight", () => views.sight(browser, tandem));
  await part("thoughts", () => views.thoughts(browser, server.url));
  await part("gpu", () => views.gpu(browser, server.url));
  await part("keyboard", keyboard);
  await part("walk", walk);
  await part("restart", restart);
  await part("keys", keys);
  await part("hostile", hostile);
  await part("streams", streams);
}

// All by keyboard: skip to the content, go through the views, ask something.
async function keyboard() {
  const page = await browser.open(`${server.url}/ui/`);
  await page.keyboard.press("Tab");
  same(await page.evaluate(() => document.activeElement.className), "skip", "the first stop skips the navigation");
  await page.keyboard.press("Enter");
  same(await page.evaluate(() => document.activeElement.id), "main", "and leads to the content");
  for (const view of ["chat", "why", "settings", "bench", "sessions", "help"]) {
    await page.locator(`nav a[href="#/${view}"]`).focus();
    const outlineWidth = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    await page.keyboard.press("Enter");
    await page.waitForSelector(`main.view-${view}`);
    check(outlineWidth !== "none", `${view}: the focus is seen`);
    const stuck = new Set();
    for (let i = 0; i < 60; i++) {
      await page.keyboard.press("Tab");
      stuck.add(await page.evaluate(() => document.activeElement === document.body ? "body" : `${document.activeElement.tagName} ${[...document.querySelectorAll("*")].indexOf(document.activeElement)}`));
      if (stuck.has("body")) break;
    }
    check(stuck.size > 3, `${view}: Tab moves on`);
  }
  await page.view("chat");
  await page.locator(".composer textarea").focus();
  await page.keyboard.type("What is 27 plus 58?");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /85/.test(document.querySelector(".message.assistant .text")?.textContent ?? ""));
  await page.end("keyboard");
}

// The walk of docs/dashboard.md.
async function walk() {
  const page = await browser.open(`${server.url}/`);
  same(new URL(page.url()).pathname, "/ui/", "the address of the server leads here");
  await page.locator('nav a[href="#/chat"]').click();
  await page.getByRole("button", { name: "What is 27 plus 58?" }).click();
  await page.waitForSelector(".message.assistant[aria-busy=false] .answer-facts");
  if (!(await page.locator(".text .tok:not(.m-off)").count())) {
    await page.getByLabel("Method").selectOption("mtp");
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.waitForSelector(".text .tok.m-mtp");
    await page.waitForSelector(".message.assistant[aria-busy=false] .answer-facts");
    await page.getByLabel("Method").selectOption("auto");
  }
  check((await page.locator(".text .tok:not(.m-off)").count()) > 0, "step 2: tinted tokens");
  await page.getByLabel("Compare with speculation off").check();
  await page.getByRole("button", { name: "Regenerate" }).click();
  await page.waitForSelector(".verdict.good");
  matches(await page.locator(".verdict").innerText(), /Same text\. [\d.]+× as fast/, "step 3: the same text");
  await page.locator('nav a[href="#/settings"]').click();
  await page.getByLabel("dflash_max_concurrent").fill("0");
  await page.getByRole("button", { name: /Apply changes/ }).click();
  await page.waitForFunction(() => !document.querySelector(".setting.changed"));
  await page.locator('nav a[href="#/chat"]').click();
  await page.getByLabel("Compare with speculation off").uncheck();
  await page.getByRole("button", { name: "Regenerate" }).click();
  await page.waitForFunction(() => document.querySelector(".message.assistant[aria-busy=false] .answer-facts") && !document.querySelector(".verdict"));
  same(await page.locator(".text .tok.m-dflash, .text .tok.m-mtp, .text .tok.m-tree").count(), 0, "step 4: no token of a drafter");
  await page.locator('nav a[href="#/why"]').click();
  await page.getByText("too many lanes").first().waitFor();
  await page.locator(".decision .id").first().click();
  await page.waitForFunction(() => new Set([...document.querySelectorAll(".decision .id")].map((x) => x.textContent)).size === 1);
  await page.locator('nav a[href="#/settings"]').click();
  const put = await fetch(`${server.url}/api/models/nano/settings`, { method: "PUT", body: '{"dflash_max_concurrent": null}' });
  same(put.status, 200, "the setting is restored");
  await page.end("the walk");
}

// The server goes away and comes back on the same port: the page says so and goes on.
async function restart() {
  const port = String(server.port), before = await (await fetch(`${server.url}/api/bench`)).json();
  const page = await browser.open(`${server.url}/ui/`);
  await page.waitForSelector(".figure .value");
  await server.stop("SIGKILL");
  await page.waitForSelector(".notice");
  await inspect(page, "without the server");
  server = await serve(tandem, [...flags, "--port", port]);
  await page.waitForFunction(() => !document.querySelector(".notice") && document.querySelector("main").dataset.connection === "open");
  const lanes = load(server.url, 1);
  await page.waitForSelector(".lane");
  await lanes.stop();
  for (const view of ["chat", "why", "settings", "bench", "sessions", "help"]) await page.view(view);
  same((await (await fetch(`${server.url}/api/bench`)).json()).data.map((x) => x.result.id), before.data.map((x) => x.result.id), "earlier benchmarks outlive a restart");
  await page.end("restart");
}

async function keys() {
  const k = makeKeys(tandem), locked = await serve(tandem, ["--api-key-file", k.users, "--admin-key-file", k.admins, "--session-dir", join(dir, "locked")]);
  const enter = async (page, key) => {
    await page.locator("dialog input").fill(key);
    await page.locator("dialog button[type=submit]").click();
  };
  const theirs = load(locked.url, 2, { authorization: `Bearer ${k.bob}` });
  for (const language of ["en", "zh-Hant"]) {
    const page = await browser.open(`${locked.url}/ui/`, { language });
    await page.waitForSelector("dialog[open]");
    await inspect(page, "the question for a key");
    await enter(page, "wrong");
    await page.waitForSelector("dialog .problem");
    await enter(page, k.alice);
    await page.waitForSelector("dialog", { state: "detached" });
    await page.waitForSelector(".figures");
    same(await page.locator(".lane").count(), 0, "a user sees no lanes of others");
    same(await page.locator("nav a").evaluateAll((all) => all.map((a) => a.hash)), ["#/live", "#/chat", "#/sessions", "#/help"], "a user's views");
    await inspect(page, "a user's numbers");
    await page.view("chat");
    await page.locator(".empty button").first().click();
    await page.waitForSelector(".answer-facts");
    await page.view("live");
    await page.waitForFunction(() => Number(document.querySelectorAll(".figure .value")[2]?.textContent.replace(/\D/g, "")) > 10);
    for (const view of ["why", "settings", "bench"]) {
      await page.view(view);
      await page.waitForSelector(".empty");
      same(await page.locator(".decision, .setting, .history li").count(), 0, `${view} is for admins`);
    }
    same(await page.evaluate((key) => [sessionStorage.length, JSON.stringify(localStorage).includes(key), document.cookie], k.alice), [1, false, ""], "the key is kept for the tab only");
    await page.view("live");
    await page.reload();
    await page.waitForSelector(".figures");
    same(await page.locator("dialog").count(), 0, "it is asked for once");
    await page.end("a user");
  }
  const page = await browser.open(`${locked.url}/ui/`);
  await enter(page, k.root);
  await page.waitForSelector(".lane");
  for (const view of ["why", "settings", "bench", "sessions"]) {
    await page.view(view);
    await page.waitForSelector({ why: ".decision", settings: ".setting", bench: "form", sessions: "form" }[view]);
  }
  await page.end("an admin");
  await theirs.stop();
  await locked.stop();
}

// Texts of models, tools, clients and names, shown as text: nothing runs, nothing is loaded, hidden characters are spelled out.
async function hostile() {
  const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g;
  const spelled = (s) => s.replace(hidden, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  const name = `<img src=x onerror=window.hacked=1>\u202e"&`;
  const odd = await serve(tandem, ["--alias", name.replace("\u202e", "")]);
  let text = "";
  const page = await browser.open(`${odd.url}/ui/#/chat`, { mock: (p) => p.route("**/v1/chat/completions", (r) => r.fulfill({ status: 200, contentType: "text/event-stream",
    body: [views.delta({ reasoning_content: text }), views.delta({ content: text }, [...text].map((_, i) => [i % 2 ? "mtp" : "off", 1])),
      views.delta({ tool_calls: [{ index: 0, id: text, function: { name: text, arguments: text } }] })].map((x) => `data: ${JSON.stringify(x)}\n\n`).join("") })) });
  const outside = await page.evaluate(() => document.querySelectorAll("script, iframe, object, embed, link, meta, base, style").length);
  for (const [i, s] of strings.entries()) {
    text = s;
    await page.locator(".chat-bar button").first().click({ force: true }).catch(() => undefined);
    await page.locator(".composer textarea").fill(s.toWellFormed());
    if (!(await page.locator(".composer textarea").inputValue()).trim()) continue;
    await page.locator(".composer button[type=submit]").click();
    await page.waitForSelector(".message.assistant[aria-busy=false] .tool");
    const found = await page.evaluate(() => ({
      user: document.querySelector(".message.user .text").textContent, content: document.querySelector(".message.assistant .answer > .text").textContent,
      thought: document.querySelector(".thought .text").textContent, name: document.querySelector(".tool bdi").textContent, args: document.querySelector(".tool code").textContent,
      tags: [...new Set([...document.querySelector(".messages").querySelectorAll("*")].map((x) => x.tagName.toLowerCase()))].filter((t) => !["article", "h2", "div", "span", "button", "details", "summary", "b", "bdi", "pre", "code", "form", "label", "input", "p"].includes(t)),
      bold: document.querySelectorAll(".message .text b, .message .text i, .message .text p, .message .text a").length,
    }));
    const want = spelled(s);
    same([found.content, found.thought, found.name, found.args], [want, want, want, want], `hostile text ${i}: shown as it is`);
    same([found.tags, found.bold], [[], 0], `hostile text ${i}: makes no elements`);
  }
  same(await page.evaluate(() => document.querySelectorAll("script, iframe, object, embed, link, meta, base, style").length), outside, "nothing was added to the document");
  same(await page.evaluate(() => window.hacked), undefined, "no script ran");
  // the names of the model and of a request, in all views
  const run = load(odd.url, 1, { "x-request-id": `"><svg onload=window.hacked=1>` });
  for (const view of ["live", "why", "settings", "bench", "sessions", "help"]) {
    await page.view(view);
    await sleep(300);
    same(await page.locator("main img, main svg[onload]").count(), 0, `${view}: names are text`);
    if (view !== "live") await checkLayout(page, `${view} with a hostile name`);
  }
  await run.stop();
  same(await page.evaluate(() => window.hacked), undefined, "no script ran in any view");
  await page.end("hostile texts");
  await odd.stop();
}

// One stream per tab, none for a hidden one, and an end to what is kept.
async function streams() {
  const count = async () => (await (await fetch(`${server.url}/api/stats`)).json()).http.stats_streams;
  await until(async () => (await count()) === 0, "streams of closed tabs end");
  const tabs = [];
  for (let i = 0; i < 3; i++) tabs.push(await browser.open(`${server.url}/ui/`));
  await until(async () => (await count()) === 3, "one stream per tab");
  await tabs[0].evaluate(() => {
    Object.defineProperty(document, "hidden", { value: true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await until(async () => (await count()) === 2, "a hidden tab has none");
  for (const t of tabs) await t.end("a tab");
}

saveStructure();
await browser.stop();
same(await server.stop(), 0, "the server ends");
if (paint) console.log(`first live numbers after ${paint.toFixed(0)} ms`);
finish();
