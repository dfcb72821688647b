// Answers that are held to a JSON Schema, judged by ajv: many schemas, sampled at temperature 1, with and without guesses,
// cut at many lengths; and what it costs. Usage: node schemas.mjs TANDEM [ANSWERS]
import Ajv from "ajv/dist/2020.js";
import formats from "ajv-formats";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { check, finish, post, same, serve } from "../server/serve.mjs";

// The table of tests/unit/grammar: C strings, in which a single quote stands for a double one.
const table = readFileSync(join(import.meta.dirname, "../unit/grammar/schemas.c"), "utf8");
const bytes = (text) => text.replace(/\\x(..)/g, (_, hex) => String.fromCharCode(parseInt(hex, 16))).replace(/\\(["\\])/g, "$1");
const strings = (text) => Buffer.from([...text.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map((m) => bytes(m[1])).join(""), "latin1").toString();
const rows = [...table.matchAll(/^ {4}\{((?:\s*"(?:[^"\\]|\\.)*")+),(?!\s*\{NULL)/gm)].map((m) => JSON.parse(strings(m[1]).replaceAll("'", '"')));
check(rows.length >= 120, `${rows.length} schemas were found in the table`);

const ajv = new Ajv({ strict: false, allErrors: false, validateFormats: true, multipleOfPrecision: 9, logger: false });
formats(ajv);
for (const f of ["uint32", "uint64"]) ajv.addFormat(f, true);
const usable = rows.flatMap((schema) => {
  try { return [{ schema, fits: ajv.compile(schema) }]; } catch { return []; }
});
check(usable.length >= 110, `${usable.length} of ${rows.length} schemas are ajv's, too`);

const server = await serve(process.argv[2]), want = Number(process.argv[3] ?? 2000);
const prompts = ["Describe a city.", "Tell me about a person.", "What is 27 plus 58?", "Write the record."];
let answers = 0, same_text = 0, cut = 0, n_long = 0;
async function ask(i, x, more) {
  const r = await post(server.url, "/v1/chat/completions", {
    messages: [{ role: "user", content: prompts[i % prompts.length] }], temperature: 1, top_p: 1, top_k: 0, seed: i, max_tokens: 400,
    response_format: { type: "json_schema", json_schema: { name: "x", strict: true, schema: x.schema } }, ...more });
  const body = await r.json();
  if (r.status !== 200) return void check(false, `${JSON.stringify(x.schema)}: ${JSON.stringify(body)}`);
  const { message: { content }, finish_reason } = body.choices[0];
  let value;
  try { value = JSON.parse(content ?? ""); } catch { return { content, finish_reason, ok: false }; }
  return { content, finish_reason, ok: x.fits(value) };
}
async function one(i) {
  const x = usable[i % usable.length], length = i % 7 === 6 ? 60 + (i % 60) : 400;
  const [plain, guessed] = await Promise.all([ask(i, x, { max_tokens: length, speculative: "off" }), ask(i, x, { max_tokens: length })]);
  if (!plain || !guessed) return;
  answers++;
  same_text += plain.content === guessed.content && plain.finish_reason === guessed.finish_reason;
  same(guessed.content, plain.content, `seed ${i} of ${JSON.stringify(x.schema)}`);
  // Where the shortest document does not fit into so few tokens the answer is cut as any other.
  if (!plain.ok && plain.finish_reason === "length" && length < 400) { n_long++; return; }
  cut += plain.finish_reason === "length";
  check(plain.ok, `seed ${i} of ${JSON.stringify(x.schema)}: ${plain.content} ${ajv.errorsText(x.fits.errors)}`);
}
for (let i = 0, width = 8; i < want; i += width) await Promise.all(Array.from({ length: Math.min(width, want - i) }, (_, k) => one(i + k)));
same(answers, want, "all were answered");
check(n_long < want / 50, `${n_long} did not fit into their tokens`);
console.log(`${usable.length} schemas, ${answers} answers at temperature 1: ${answers - n_long} fit (${cut} of them cut by their length), ${n_long} too short for any; ${same_text} the same with and without guesses`);
await server.stop();
finish();
