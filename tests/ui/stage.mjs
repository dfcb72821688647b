// A server with nano under load, and what the tests of the page share.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { check, post, same, sleep } from "../server/serve.mjs";

export const dir = mkdtempSync(join(tmpdir(), "tandem-ui-test-"));
process.on("exit", () => rmSync(dir, { recursive: true, force: true }));

// Keeps `n` requests running until stop() is called.
export function load(url, n, headers = {}) {
  const end = new AbortController();
  const prompts = ["Count from 1 to 40.", "Write a short story about a fox.", "What is 27 plus 58?"];
  const run = async (lane) => {
    for (let i = 0; !end.signal.aborted; i++) {
      try {
        const r = await post(url, "/v1/chat/completions", { messages: [{ role: "user", content: prompts[(lane + i) % prompts.length] }], max_tokens: 300, temperature: 0.8, seed: 1000 * lane + i },
          { headers, signal: end.signal });
        await r.text();
      } catch {
        await sleep(50); // stopped, or the server is away
      }
    }
  };
  const all = Array.from({ length: n }, (_, i) => run(i));
  return { stop: () => (end.abort(), Promise.all(all)) };
}

export function makeKeys(tandem) {
  const users = join(dir, "users"), admins = join(dir, "admins");
  const make = (file, name) => execFileSync(tandem, ["key", "--file", file, name], { encoding: "utf8" }).trim().split(/\s+/).pop();
  return { users, admins, alice: make(users, "alice"), bob: make(users, "bob"), root: make(admins, "root") };
}

// --- layout and structure
// What a view consists of, whatever its language and numbers: the kinds of its elements that are seen, in order, within their parents.
// Parts of the layout have the column, of six, that they begin and end in. Equal lines count once.
export const outline = (page) => page.evaluate(() => {
  const layout = "header,nav,main,aside,section,article,form,.figure,.chart,.columns,.grid,.stack,.talk,.code";
  const kinds = `${layout},table,ul,ol,dl,canvas,svg,textarea,input,select,button,h1,h2,h3,fieldset,details,progress,.bar,.empty,.notice,.verdict`;
  const ignored = /^(m-|s-|u-|good$|bad$|chosen$|changed$|quiet$|hidden$)/;
  const lines = new Set(), wide = document.documentElement.clientWidth, column = (x) => Math.round((x / wide) * 6);
  const walk = (x, path) => {
    for (const c of x.children) {
      const box = c.getBoundingClientRect();
      let deeper = path;
      if (box.width > 1 && box.height > 1 && c.matches(kinds)) {
        const name = c.tagName.toLowerCase() + [...c.classList].filter((k) => !ignored.test(k)).map((k) => `.${k}`).join("");
        deeper = `${path}/${name}`;
        lines.add(c.matches(layout) && !c.closest("ol,ul,.messages") ? `${deeper} ${column(box.left)}-${column(box.right)}` : deeper);
      }
      if (!c.matches("svg,.columns,.u-wrap,table,.options,.lanes,.text,.history")) walk(c, deeper);
    }
  };
  walk(document.body, "");
  return [...lines];
});

const file = join(import.meta.dirname, "structure.json");
const update = process.argv.includes("--update");
const kept = JSON.parse(readFileSync(file, "utf8"));
export async function checkStructure(page, name, what) {
  const asKept = () => JSON.stringify(now) === JSON.stringify(kept[name]);
  let now = await outline(page);
  for (let i = 0; !update && i < 20 && !asKept(); i++) { // between two requests there is no lane
    await sleep(100);
    now = await outline(page);
  }
  if (update) kept[name] = now;
  else if (!check(asKept(), `${what}: the structure differs`)) {
    const was = new Set(kept[name]), is = new Set(now);
    console.log(`  missing: ${[...was].filter((x) => !is.has(x)).join(", ")}\n  added: ${[...is].filter((x) => !was.has(x)).join(", ")}\n  first at: ${now.find((x, i) => x !== kept[name]?.[i])}`);
  }
}
export const saveStructure = () => update && writeFileSync(file, `${JSON.stringify(kept, null, 1)}\n`);

// Nothing is wider than the page, no two cards overlap, no label is cut off.
export async function checkLayout(page, what) {
  const found = await page.evaluate(() => {
    const bad = [], wide = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > wide + 1) bad.push(`the page is ${document.documentElement.scrollWidth} wide in ${wide}`);
    const cards = [...document.querySelectorAll("main .card, main .figure")].map((x) => [x, x.getBoundingClientRect()]);
    for (const [a, p] of cards)
      for (const [b, q] of cards)
        if (a !== b && !a.contains(b) && !b.contains(a) && p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1)
          bad.push(`${a.className} and ${b.className} overlap`);
    for (const x of document.querySelectorAll("button, nav a, h2, .tag, .figure .value, th"))
      if (!x.closest(".hidden") && x.scrollWidth > x.clientWidth + 1 && getComputedStyle(x).overflow !== "visible" && x.clientWidth > 0) bad.push(`"${x.textContent}" is cut off`);
    return bad;
  });
  same(found, [], `${what}: layout`);
}
