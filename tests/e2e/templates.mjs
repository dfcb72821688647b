// Renders conversations with the real chat templates of Gemma 4, to judge ours: the expectations of
// tests/unit/chat/templates.c. Usage: node templates.mjs TEMPLATE_DIR [CONVERSATIONS] > expected.json
// TEMPLATE_DIR has google-gemma-4-31B-it.jinja (revision A) and vllm-gemma-4-tool.jinja (revision B).
// The small models' templates are the same without the closed empty thought.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";

const [dir, file = fileURLToPath(new URL("../golden/chat/conversations.json", import.meta.url))] = process.argv.slice(2);
if (!dir) {
  console.error("usage: node templates.mjs TEMPLATE_DIR [CONVERSATIONS]");
  process.exit(2);
}
const read = (name) => readFileSync(join(dir, name), "utf8");
const small = (text) => text.replaceAll("{{- '<|channel>thought\\n<channel|>' -}}", "");
const a = read("google-gemma-4-31B-it.jinja");
const b = read("vllm-gemma-4-tool.jinja");
const templates = Object.entries({ A: a, "A-small": small(a), B: b, "B-small": small(b) })
  .map(([name, text]) => [name, new Template(text)]);

// What every server does before it calls a template: arguments become objects, media lose their wrapping.
const kinds = { image_url: "image", input_audio: "audio", video_url: "video" };
function prepare(message) {
  const m = structuredClone(message);
  for (const part of Array.isArray(m.content) ? m.content : []) part.type = kinds[part.type] ?? part.type;
  for (const { function: f } of m.tool_calls ?? []) {
    if (typeof f.arguments !== "string") continue;
    if (!f.arguments.trim()) f.arguments = null;
    else try { f.arguments = JSON.parse(f.arguments); } catch { /* stays a string */ }
  }
  return m;
}

function render(template, { messages, tools, chat_template_kwargs, ...options }) {
  const context = { bos_token: "<bos>", add_generation_prompt: true, ...options, ...chat_template_kwargs };
  context.messages = messages.map(prepare);
  if (tools) context.tools = tools;
  try {
    return template.render(context);
  } catch (e) {
    return { error: e.message };
  }
}

const lines = JSON.parse(readFileSync(file, "utf8")).map(({ name, request }) => {
  const texts = Object.fromEntries(templates.map(([key, t]) => [key, render(t, request)]));
  return `${JSON.stringify(name)}: ${JSON.stringify(texts)}`;
});
console.log(`{\n${lines.join(",\n")}\n}`);
