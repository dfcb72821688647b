// Debian's Chromium, driven by playwright-core: pages that collect what must not happen, axe, and the structure of a view.
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium as driver } from "playwright-core";
import { check, same } from "../server/serve.mjs";

export const program = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => existsSync(path));
const axe = readFileSync(join(import.meta.dirname, "../node_modules/axe-core/axe.min.js"), "utf8");

export async function launch() {
  const home = mkdtempSync(join(tmpdir(), "tandem-ui-"));
  const browser = await driver.launch({
    executablePath: program,
    env: { ...process.env, HOME: home },
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb"],
  });

  // Opens a page in an empty profile. page.bad lists errors, refused scripts and requests to other servers.
  async function open(url, { width = 1280, height = 900, dark = false, language = "en", mobile = width < 600, mock } = {}) {
    const context = await browser.newContext({ viewport: { width, height }, locale: language, colorScheme: dark ? "dark" : "light", hasTouch: mobile,
      reducedMotion: "reduce", permissions: ["clipboard-read", "clipboard-write"] });
    const page = await context.newPage();
    page.setDefaultTimeout(30000);
    page.bad = [];
    page.origin = new URL(url).origin;
    page.on("pageerror", (e) => page.bad.push(`error: ${e.stack ?? e}`));
    page.on("console", (m) => m.type() === "error" && !/Failed to load resource|net::ERR/.test(m.text()) && page.bad.push(`console: ${m.text()}`));
    page.on("dialog", (d) => (page.bad.push(`dialog: ${d.message()}`), d.dismiss()));
    page.on("request", (r) => !r.url().startsWith(page.origin) && !/^(data|blob):/.test(r.url()) && page.bad.push(`request to ${r.url()}`));
    await page.addInitScript(() => {
      window.violations = [];
      document.addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
    });
    if (mock) await mock(page);
    await page.goto(url);
    await page.waitForSelector("main");
    page.view = async (name) => {
      await page.evaluate((to) => (location.hash = `#/${to}`), name);
      await page.waitForSelector(`main.view-${name}`);
    };
    // Ends the page; all that it collected must be empty.
    page.end = async (what) => {
      const violations = await page.evaluate(() => window.violations);
      same([...page.bad, ...violations], [], `${what}: errors, foreign requests, violations of the policy`);
      await context.close();
    };
    return page;
  }
  return {
    open,
    async stop() {
      await browser.close();
      rmSync(home, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

// Runs axe on what the page shows; serious and critical findings are failures.
export async function inspect(page, what) {
  const found = await page.evaluate(async (source) => {
    if (!window.axe) {
      // The policy of the page forbids inline scripts, and evaluate is not bound by it.
      new Function("module", "exports", source).call(window);
    }
    const r = await window.axe.run(document, { resultTypes: ["violations"] });
    return r.violations.filter((v) => v.impact === "serious" || v.impact === "critical")
      .map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target.join(" ")} ${n.any[0]?.message ?? ""}`).join("; ")}`);
  }, axe);
  same(found, [], `${what}: axe`);
}
export { check };
