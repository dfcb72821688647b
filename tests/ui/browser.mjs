// Chromium over its DevTools protocol, by pipes: pages, clicks, texts, screenshots.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sleep } from "../server/serve.mjs";

export const chromium = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => existsSync(path));

export async function launch() {
  const home = mkdtempSync(join(tmpdir(), "tandem-ui-"));
  const process_ = spawn(chromium, ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--force-color-profile=srgb", `--user-data-dir=${home}`,
    "--remote-debugging-pipe", "about:blank"], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
  const waiting = new Map(), pages = new Map();
  let next = 0, rest = "";
  process_.stdio[4].on("data", (bytes) => {
    const parts = (rest + bytes.toString("utf8")).split("\0");
    rest = parts.pop();
    for (const text of parts) {
      const m = JSON.parse(text);
      if (m.id) {
        const w = waiting.get(m.id);
        waiting.delete(m.id);
        if (m.error) w.fail(new Error(`${w.method}: ${m.error.message}`));
        else w.done(m.result);
      } else {
        pages.get(m.sessionId)?.(m.method, m.params);
      }
    }
  });
  process_.stdio[4].setEncoding("utf8");
  const send = (method, params = {}, sessionId) => new Promise((done, fail) => {
    const id = ++next;
    waiting.set(id, { done, fail, method });
    process_.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  });

  // Opens a page in a context of its own. Collects what must not happen: errors, refused scripts, foreign requests.
  async function open(url, { width = 1280, height = 900, dark = false, language = "en", before = "" } = {}) {
    const { browserContextId } = await send("Target.createBrowserContext");
    const { targetId } = await send("Target.createTarget", { url: "about:blank", browserContextId, width, height });
    const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
    const call = (method, params) => send(method, params, sessionId);
    const page = { errors: [], requests: [], call };
    pages.set(sessionId, (method, p) => {
      if (method === "Runtime.exceptionThrown") page.errors.push(p.exceptionDetails.exception?.description ?? p.exceptionDetails.text);
      if (method === "Runtime.consoleAPICalled" && p.type === "error") page.errors.push(p.args.map((a) => a.value ?? a.description).join(" "));
      if (method === "Log.entryAdded" && p.entry.source === "security") page.errors.push(p.entry.text);
      if (method === "Network.requestWillBeSent") page.requests.push(p.request.url);
    });
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await call(`${domain}.enable`);
    await call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
    await call("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
    await call("Emulation.setLocaleOverride", { locale: language });
    await call("Page.addScriptToEvaluateOnNewDocument", { source:
      `window.violations = []; document.addEventListener("securitypolicyviolation", (e) => violations.push(e.violatedDirective + " " + e.blockedURI));
       if (!localStorage.getItem("tandem.language")) localStorage.setItem("tandem.language", ${JSON.stringify(JSON.stringify(language))}); ${before}` });
    page.run = async (code) => {
      const r = await call("Runtime.evaluate", { expression: code, awaitPromise: true, returnByValue: true });
      if (r.exceptionDetails) throw new Error(`${code.slice(0, 200)}: ${r.exceptionDetails.exception?.description ?? r.exceptionDetails.text}`);
      return r.result.value;
    };
    page.go = async (to) => {
      await call("Page.navigate", { url: to });
      await page.until("document.querySelector('main') !== null");
    };
    page.until = async (code, ms = 60000) => {
      const end = Date.now() + ms;
      while (Date.now() < end) {
        if (await page.run(`!!(${code})`).catch(() => false)) return true;
        await sleep(30);
      }
      throw new Error(`not within ${ms} ms: ${code}; the page shows: ${(await page.run("document.body.innerText").catch(String)).slice(0, 600)}`);
    };
    page.text = () => page.run("document.body.innerText");
    page.click = (selector) => page.run(`(() => { const x = document.querySelector(${JSON.stringify(selector)}); if (!x) throw new Error("no " + ${JSON.stringify(selector)}); x.click(); })()`);
    page.fill = (selector, value) => page.run(`(() => { const x = document.querySelector(${JSON.stringify(selector)}); if (!x) throw new Error("no " + ${JSON.stringify(selector)});
      Object.getOwnPropertyDescriptor(Object.getPrototypeOf(x), "value").set.call(x, ${JSON.stringify(value)});
      x.dispatchEvent(new Event(x.tagName === "SELECT" ? "change" : "input", { bubbles: true })); })()`);
    page.press = async (key, code = 0) => {
      for (const type of ["keyDown", "keyUp"]) await call("Input.dispatchKeyEvent", { type, key, code: key, windowsVirtualKeyCode: code });
    };
    page.shot = async () => Buffer.from((await call("Page.captureScreenshot", { format: "png" })).data, "base64");
    page.close = () => send("Target.disposeBrowserContext", { browserContextId });
    if (url) await page.go(url);
    return page;
  }

  return {
    open,
    async stop() {
      const gone = new Promise((done) => process_.once("exit", done));
      process_.kill();
      await gone;
      rmSync(home, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}
