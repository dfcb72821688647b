// Texts and vocabularies for tokenizer_compare.mjs. Everything is made from a seed: the same on every machine.
import { readFileSync } from "node:fs";

// --- random choices
function randomOf(seed) { // mulberry32
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// --- Gemma 4's markers, with their ids; the vocabulary of the generation before has other tokens there
export const markers = {
  "<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4, "<|tool>": 46, "<tool|>": 47, "<|tool_call>": 48, "<tool_call|>": 49,
  "<|tool_response>": 50, "<tool_response|>": 51, '<|"|>': 52, "<|think|>": 98, "<|channel>": 100, "<channel|>": 101, "<|turn>": 105,
  "<turn|>": 106, "<|image>": 255999, "<|audio>": 256000, "<|image|>": 258880, "<|audio|>": 258881, "<image|>": 258882,
  "<audio|>": 258883, "<|video|>": 258884 };

// The vocabulary in `file` with Gemma 4's markers, all of them special. `userDefined`: those of a chat are listed as user-defined
// tokens instead, as files may have them.
export function gemma4Vocabulary(file, userDefined = false) {
  const json = JSON.parse(readFileSync(file, "utf8"));
  const name = new Map(Object.entries(markers).map(([text, id]) => [id, text]));
  const special = (id) => !userDefined || id < 5;
  json.model.vocab = Object.fromEntries(Object.entries(json.model.vocab).map(([text, id]) => [name.get(id) ?? text, id]));
  json.added_tokens = json.added_tokens.filter(({ id }) => !name.has(id) && id < 262144).concat(
    [...name].map(([id, content]) => (
      { id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: special(id) })));
  return json;
}

// --- lines
const words = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were her all "
  + "would there their will when who him been has more if no out do so can what up said about other into than its time only could new them man "
  + "some these then two first may any like now my such make over our even most me state after also made many did must before back see through "
  + "Größe Straße été naïve coração señor øl Łódź İstanbul 'tis don't e-mail 3.14 1,000,000 0x1F 2026-11-16 https://example.org/a?b=c&d=%20").split(" ");
const code = ["int main(void)", "{", "}", "return x;", "if (a < b && c > d)", "for (size_t i = 0; i < n; i++)", "// note", "/* note */", "def f(self):", "x = y[0]",
  "a->b", "p = &q;", "#include <stdio.h>", "std::vector<int> v;", "template <typename T>", "=>", "===", "!=", "<<", ">>", "<=", "\\n", "\\u0041", "%d\\t%s", "`x`",
  "${y}", "SELECT * FROM t WHERE a<>b;", "λx.x", "@dec", "let s: &'a str;", "{\"a\": [1, null]}", "<?xml version=\"1.0\"?>", "<!-- c -->", "]]>"];
const tags = ["table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td", "h1", "h2", "h6", "blockquote", "strong", "em", "b", "i", "u", "s", "sub", "sup",
  "code", "a", "html", "body", "img", "span", "bbox", "ul", "li", "div", "iframe", "footer", "p", "pre", "script", "ol", "h7", "B", "Table"];
const emoji = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "🦙", "❤️", "1️⃣", "🫠", "☃", "✅", "🧑🏿‍🚀", "\u200D", "\uFE0F"];
const scripts = [[0x20, 0x7e], [0xa0, 0x17f], [0x370, 0x3ff], [0x400, 0x4ff], [0x530, 0x58f], [0x590, 0x5ff], [0x600, 0x6ff], [0x900, 0x97f], [0xe00, 0xe5b],
  [0x1000, 0x109f], [0x10a0, 0x10ff], [0x1200, 0x137f], [0x1780, 0x17ff], [0x1e00, 0x1eff], [0x2000, 0x206f], [0x2190, 0x21ff], [0x2580, 0x259f],
  [0x3040, 0x30ff], [0x4e00, 0x9fff], [0xac00, 0xd7a3], [0xe000, 0xe0ff], [0xfe00, 0xfe6f], [0xff00, 0xffef], [0x300, 0x36f], [0x980, 0xdff], [0xf00, 0xfff], [0x1100, 0x11ff], [0x2070, 0x218f], [0xf900, 0xfaff], [0x1d400, 0x1d7ff], [0x1f300, 0x1faff],
  [0x20000, 0x2a6df], [0xe0020, 0xe007f], [0x10fff0, 0x10ffff]];
const sentences = ["我想在苹果公司工作，你觉得怎么样？", "今天天气很好，我们去公园散步吧！2026年11月16日", "繁體中文：這是一個測試。", "これはテストです。カタカナとひらがな、漢字が混ざっています。",
  "東京は日本の首都で、人口は約1400万人です。", "한국어 문장도 있습니다. 띄어쓰기가 중요해요!", "هذا نص باللغة العربية، مع أرقام ١٢٣ وتشكيلٌ كامِلٌ.", "این یک جمله فارسی است؛ می‌خواهم",
  "זה משפט בעברית עִם נִקּוּד.", "यह हिन्दी में एक वाक्य है। क्षेत्र ज़रूर १२३", "এটি একটি বাংলা বাক্য।", "இது ஒரு தமிழ் வாக்கியம்.", "ఇది తెలుగు వాక్యం.", "ಇದು ಕನ್ನಡ ವಾಕ್ಯ.", "ഇത് മലയാളം വാചകം.",
  "ประโยคภาษาไทยไม่มีช่องว่าง", "ပြည်ထောင်စု သမ္မတ", "កាន់តែពិសេសអាចខលចេញ", "Это предложение на русском языке.", "Αυτή είναι μια πρόταση στα ελληνικά.", "Cửa Việt là một địa danh ở Quảng Trị.",
  "I'll say it's fine, they've DON'T you'RE we'D", "İstanbul'da ığdır", "ქართული ენა", "Հայերեն լեզու", "አማርኛ ቋንቋ", "ལྷ་ས་གྲོང་ཁྱེར", "ᠮᠣᠩᠭᠣᠯ"];
const odd = ["[multimodal]", "[multimodal", "<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<0x41>", "<0xE2>", "</s>", "<s>", "<", ">", "|", "\"",
  "▁", "▁▁▁", "\u0000", "\u0001", "\u001c", "\u007f", "\u0085", "\u00a0", "\u2028", "\ufeff", "\ufffd", "\ufffe", "\u0301"];
const names = [...Object.keys(markers), "<|turn", "turn|>", "<|tool_", "<|\"", "<|chan<channel|>", "<<bos>>", "<|tool_call><b>", "<bos ><bos>"];

// `n` texts; some have newlines when `newlines` is true. `markerTexts` are strewn in.
export function makeTexts(n, newlines, seed = 1, markerTexts = names) {
  const random = randomOf(seed), below = (k) => Math.floor(random() * k), pick = (list) => list[below(list.length)];
  const runs = newlines ? [" ", " ", "\t", "\n", "\r\n", "▁", "\u3000"] : [" ", " ", " ", "\t", "▁", "\r", "\u3000"];
  const letters = ([from, to]) => Array.from({ length: 1 + below(12) }, () => String.fromCodePoint(from + below(to - from + 1))).join("");
  const pieces = [
    () => Array.from({ length: 1 + below(10) }, () => pick(words)).join(" "),
    () => " ".repeat(4 * below(6)) + pick(code),
    () => `<${pick(["", "/"])}${pick(tags)}${pick(["", "", "", ">", " class=\"x\"", " /"])}>`,
    () => { const t = pick(tags); return `<${t}>${pick(words)}</${t}>`; },
    () => pick(runs).repeat(1 + below(below(8) ? 9 : 70)),
    () => pick(runs) + pick(runs) + pick(runs),
    () => `<unused${below(below(3) ? 100 : 7000)}${pick(["", "", ""]) || ">"}`,
    () => `<unused${below(7000)}`,
    () => pick(emoji) + pick(emoji),
    () => letters(pick(scripts)),
    () => letters(pick(scripts)) + letters(pick(scripts)),
    () => { const s = [...pick(sentences)], from = below(s.length); return s.slice(from, from + 1 + below(20)).join(""); },
    () => pick(sentences).normalize(pick(["NFC", "NFD"])),
    () => pick(odd),
    () => pick(markerTexts),
  ];
  const clean = (s) => (newlines ? s : s.replaceAll("\n", " "));
  return Array.from({ length: n }, () => clean(Array.from({ length: 1 + below(7) }, () => pick(pieces)() + pick(["", "", " "])).join("")));
}

// --- chats
const leaves = (x) => (typeof x === "string" ? [x] : x && typeof x === "object" ? Object.values(x).flatMap(leaves) : []);
const marker = new RegExp(Object.keys(markers).map((s) => s.replace(/[|]/g, "\\|")).join("|"));

// Places of the golden conversations where a text may stand, with the prompts that the real templates made of them: `at` is the index
// of the message, `text` what stands there now, once in the prompt. The templates cut thoughts out of an assistant's text: not there.
export function chatPlaces(dir) {
  const read = (name) => JSON.parse(readFileSync(new URL(name, dir), "utf8"));
  const { templates, cases } = read("expected.json");
  return read("conversations.json").flatMap(({ name, request }) => {
    if (leaves(request).some((s) => marker.test(s))) return [];
    const prompts = templates.map(({ revision, large }, i) => ({ template: { revision, large }, prompt: cases[name].texts[cases[name].of[i]] }));
    return prompts.flatMap(({ template, prompt }) => request.messages.flatMap(({ role, content }, at) => {
      const usable = role !== "assistant" && typeof prompt === "string" && typeof content === "string" && content.length > 3 && content === content.trim();
      return usable && prompt.split(content).length === 2 ? [{ template, request, prompt, at, text: content }] : [];
    }));
  });
}

// A place with another text: the request, and the prompt as a list of markers (their ids) and texts.
export function fillPlace({ template, request, prompt, at, text }, other) {
  const messages = request.messages.map((m, i) => (i === at ? { ...m, content: other } : m));
  const parts = prompt.split(new RegExp(`(${marker.source})`)).filter((s) => s);
  return { template, request: { ...request, messages }, parts: parts.map((s) => markers[s] ?? s.replace(text, () => other)) };
}
