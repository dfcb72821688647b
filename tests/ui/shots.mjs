// Takes the six screenshots of docs/dashboard.md: node shots.mjs TANDEM. Fonts are those of this machine.
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { serve, sleep } from "../server/serve.mjs";
import { launch } from "./browser.mjs";
import { load } from "./stage.mjs";

const out = join(import.meta.dirname, "../../docs/dashboard"), state = mkdtempSync(join(tmpdir(), "tandem-shots-"));
process.on("exit", () => rmSync(state, { recursive: true, force: true }));
mkdirSync(out, { recursive: true });
const server = await serve(process.argv[2], ["--session-dir", state]), browser = await launch();
const shot = (page, name) => page.screenshot({ path: join(out, `${name}.png`) });
const page = await browser.open(`${server.url}/ui/`, { width: 1200, height: 860 });

const lanes = load(server.url, 4);
await sleep(70000); // a minute of history
await page.waitForFunction(() => document.querySelectorAll(".lane svg .accepted").length > 6);
await shot(page, "live");

const phone = await browser.open(`${server.url}/ui/`, { width: 390, height: 844, dark: true, language: "zh-Hans" });
await phone.waitForFunction(() => document.querySelectorAll(".lane svg .accepted").length > 6);
await sleep(8000);
await shot(phone, "phone");
await page.view("why");
await page.waitForSelector(".decision .options");
await sleep(500);
await shot(page, "why");
await lanes.stop();

await page.view("chat");
await page.getByLabel("Compare with speculation off").check();
await page.locator(".empty button").first().click();
await page.waitForSelector(".verdict.good");
await page.locator(".composer textarea").fill("Count from 1 to 40.");
await page.locator(".composer textarea").press("Enter");
await page.waitForFunction(() => document.querySelectorAll(".verdict.good").length === 2);
await sleep(300);
await shot(page, "chat");

await page.view("settings");
await page.waitForSelector(".setting");
await page.locator("#set-dflash_max_concurrent").fill("2");
await shot(page, "settings");

await page.view("bench");
await page.locator(".fields input").first().fill("1, 4");
for (const name of ["DFlash", "MTP"]) await page.getByLabel(name, { exact: true }).check();
await page.locator("form button[type=submit]").click();
await page.waitForSelector(".ratio", { timeout: 120000 });
await page.locator(".history button").first().waitFor();
await shot(page, "bench");
await browser.stop();
await server.stop();
process.exit(0);
