// Answers that are held to the schemas of zod's types (z.toJSONSchema), parsed by zod. Usage: node zod.mjs TANDEM [SEEDS]
// node zod.mjs --record prints tests/golden/schemas/zod.json, which the unit tests read.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as z from "zod";
import { check, finish, post, same, serve } from "../server/serve.mjs";
import { loose, refused, types } from "./zod_types.mjs";

const golden = join(import.meta.dirname, "../golden/schemas/zod.json");

// Documents of all kinds; those that a type refuses must not fit the grammar of its schema.
const words = ["", "a", "ab", "abc", "abyz", "xmidx", "ABC", "a@b.co", "a@b", "https://a.bc/d", "a-1-z", "12px", "true", "2024-02-29", "2024-02-30", "12:30:00",
  "2024-01-01T00:00:00Z", "2024-01-01T00:00:00+01:00", "P1D", "P", "PT", "192.168.0.1", "192.168.0.256", "::1", "10.0.0.0/8", "00:1a:2b:3c:4d:5e", "00:1A:2b:3c:4d:5e",
  "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "3f2504e0-4f89-91d3-0a0c-0305e82c3301", "YWJj", "YWJjZ", "deadbeef", "+4912345678", "+0", "example.com", "-a.com"];
const documents = [...words, 0, 1, 2, -1, 1.5, 0.25, 0.01, 0.001, 4, 5, 6, 10, 11, 2147483648, 9007199254740992, true, false, null, [], [1], [1, 2], [1, 2, 3, 4], ["a"], ["a", 1], ["a", 1.5],
  ["a", "b"], {}, { a: "x" }, { a: 1 }, { a: "x", b: 1 }, { a: "x", b: "y" }, { b: 1 }, { a: 1, b: 2 }, { a: null }, { c: 1 }, { k: "a", a: 1 }, { k: "b", b: "x" }, { k: "c" }, { k: "a" },
  { "x_1": 1 }, { "x_1": "y" }, { "1": "x" }, { "1": 1 }, { v: 1 }, { v: 1, next: { v: 2 } }, { v: 1, next: {} }, { name: "n", kids: [] }, { name: "n", kids: [{ name: "m" }] }, { abcd: 1 }];

function schema_of(type) {
  const { $schema, "~standard": _, ...schema } = z.toJSONSchema(type);
  return schema;
}
async function parses(type, value) {
  return (await type.safeParseAsync(value)).success;
}
async function record(name) {
  const no = []; // by their numbers
  for (const [i, d] of documents.entries()) if (!loose.has(name) && !(await parses(types[name], d))) no.push(i);
  return { in: `zod/${name}`, refused: refused.has(name), schema: schema_of(types[name]), no };
}
const rows = (await Promise.all(Object.keys(types).map(record))).map((x) => JSON.stringify(x));
const text = `{"documents":${JSON.stringify(documents)},\n"types":[\n${rows.join(",\n")}\n]}\n`;
if (process.argv[2] === "--record") {
  process.stdout.write(text);
  process.exit(0);
}
check(text === readFileSync(golden, "utf8"), "tests/golden/schemas/zod.json is not what this zod gives: record it anew");

const server = await serve(process.argv[2]), seeds = Number(process.argv[3] ?? 2);
let answers = 0, parsed = 0;
async function ask(name, seed) {
  const r = await post(server.url, "/v1/chat/completions", {
    messages: [{ role: "user", content: "Write a record." }], temperature: 1, top_k: 0, seed, max_tokens: 300,
    response_format: { type: "json_schema", json_schema: { name: "x", schema: schema_of(types[name]) } } });
  const body = await r.json();
  if (refused.has(name)) return check(r.status === 400 && body.error.message.includes("pattern"), `${name}: ${JSON.stringify(body)}`);
  if (!check(r.status === 200, `${name}: ${JSON.stringify(body)}`)) return;
  const { content, tool_calls } = body.choices[0].message;
  answers++;
  let value;
  try { value = JSON.parse(content); } catch { return check(false, `${name}: ${content} is not JSON, ${JSON.stringify(tool_calls)}`); }
  if (loose.has(name)) return;
  const ok = await parses(types[name], value);
  parsed += ok;
  check(ok, `${name}: ${content} does not parse`);
}
const all = Object.keys(types).flatMap((name) => Array.from({ length: seeds }, (_, seed) => [name, seed]));
for (let i = 0, width = 8; i < all.length; i += width) await Promise.all(all.slice(i, i + width).map(([name, seed]) => ask(name, seed)));
same(answers, seeds * (Object.keys(types).length - refused.size), "all were answered");
console.log(`${Object.keys(types).length} types of zod, ${refused.size} refused; ${answers} answers at temperature 1, ${parsed} parsed`);
await server.stop();
finish();
