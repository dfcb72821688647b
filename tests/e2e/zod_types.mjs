// Types of zod 4, for zod.mjs.
import * as z from "zod";

const iso = z.iso;
const Node = z.object({ v: z.int(), get next() { return Node.optional(); } });
const Tree = z.object({ name: z.string(), get kids() { return z.array(Tree); } });

// The schema says less than the type does (a protocol, a refinement, a value that is not JSON): answers that fit it need not parse.
export const loose = new Set(["httpUrl", "url_https", "jwt", "file", "refined", "stringbool"]);
// Unicode properties in a pattern cannot be enforced.
export const refused = new Set(["emoji"]);
// Date, bigint, Set, Map, transforms, undefined, void, NaN, symbols and custom types have no JSON Schema, says zod.
export const types = {
  string: z.string(), min: z.string().min(3), max: z.string().max(5), length: z.string().length(4), regex: z.string().regex(/^[a-z]+$/),
  startsWith: z.string().startsWith("ab"), endsWith: z.string().endsWith("yz"), includes: z.string().includes("mid"),
  lowercase: z.string().lowercase(), uppercase: z.string().uppercase(), trim: z.string().trim(), nonempty: z.string().nonempty(),
  starts_and_ends: z.string().startsWith("a").endsWith("z"), regex_and_length: z.string().regex(/^[a-z]+$/).min(2).max(4),
  email: z.email(), uuid: z.uuid(), uuidv4: z.uuidv4(), guid: z.guid(), url: z.url(), httpUrl: z.httpUrl(), hostname: z.hostname(),
  emoji: z.emoji(), nanoid: z.nanoid(), cuid: z.cuid(), cuid2: z.cuid2(), ulid: z.ulid(), xid: z.xid(), ksuid: z.ksuid(),
  ipv4: z.ipv4(), ipv6: z.ipv6(), mac: z.mac(), cidrv4: z.cidrv4(), cidrv6: z.cidrv6(), base64: z.base64(), base64url: z.base64url(),
  hex: z.hex(), hash: z.hash("sha256"), jwt: z.jwt(), e164: z.e164(),
  iso_date: iso.date(), iso_time: iso.time(), iso_datetime: iso.datetime(), iso_datetime_offset: iso.datetime({ offset: true }),
  iso_datetime_local: iso.datetime({ local: true }), iso_datetime_precision: iso.datetime({ precision: 3 }), iso_duration: iso.duration(),
  number: z.number(), int: z.int(), int32: z.int32(), uint32: z.uint32(), float32: z.float32(), float64: z.float64(),
  gt: z.number().gt(5), gte: z.number().gte(5), lt: z.number().lt(5), positive: z.number().positive(), negative: z.number().negative(),
  multipleOf: z.number().multipleOf(5), step: z.number().multipleOf(0.01), int_range: z.int().min(1).max(10), safeint: z.number().int(),
  boolean: z.boolean(), null: z.null(), any: z.any(), unknown: z.unknown(), never_optional: z.object({ a: z.never().optional() }),
  literal: z.literal("a"), literals: z.literal(["a", 1, null, true]), enum: z.enum(["a", "b", "c"]), native_enum: z.enum({ A: "x", B: 2 }),
  nullable: z.string().nullable(), optional: z.object({ a: z.string().optional() }), nullish: z.object({ a: z.string().nullish() }),
  default: z.object({ a: z.string().default("x") }), prefault: z.object({ a: z.string().prefault("x") }), catch: z.string().catch("x"),
  readonly: z.object({ a: z.string() }).readonly(), describe: z.string().describe("words"), brand: z.string().brand("B"),
  object: z.object({ a: z.string(), b: z.number() }), strictObject: z.strictObject({ a: z.string() }), looseObject: z.looseObject({ a: z.string() }),
  catchall: z.object({ a: z.string() }).catchall(z.number()), partial: z.object({ a: z.string(), b: z.int() }).partial(),
  array: z.array(z.string()), array_min: z.array(z.int()).min(2).max(3), array_length: z.array(z.int()).length(2), array_nonempty: z.array(z.int()).nonempty(),
  tuple: z.tuple([z.string(), z.number()]), tuple_rest: z.tuple([z.string()], z.int()), tuple_optional: z.tuple([z.string(), z.int().optional()]),
  union: z.union([z.string(), z.number()]), discriminated: z.discriminatedUnion("k", [z.object({ k: z.literal("a"), a: z.int() }), z.object({ k: z.literal("b"), b: z.string() })]),
  xor: z.xor([z.string(), z.number()]), intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
  xor_objects: z.xor([z.object({ a: z.string() }), z.object({ b: z.int() })]),
  record: z.record(z.string(), z.number()), record_enum: z.record(z.enum(["a", "b"]), z.int()), partialRecord: z.partialRecord(z.enum(["a", "b"]), z.int()),
  record_regex: z.record(z.string().regex(/^[a-z]{1,3}$/), z.int()), record_number: z.record(z.number(), z.string()), looseRecord: z.looseRecord(z.string().regex(/^x_/), z.int()),
  templateLiteral: z.templateLiteral(["a-", z.int(), "-z"]), template_number: z.templateLiteral([z.number(), "px"]), stringbool: z.stringbool(),
  json: z.json(), lazy: z.lazy(() => z.string()), recursive: Node, tree: Tree, pipe: z.string().pipe(z.string().min(2)),
  refined: z.string().min(1).refine((s) => s.length < 99), promise: z.promise(z.string()), file: z.file(),
  step_range: z.number().multipleOf(0.5).min(0).max(10), email_and_max: z.email().max(40), url_https: z.url({ protocol: /^https$/ }), regex_flags: z.string().regex(/^[a-f]+$/i),
  exact_optional: z.object({ a: z.exactOptional(z.string()) }),
};
