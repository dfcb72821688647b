// Languages: the keys of lang/en.ts are the keys of all others.
import { en } from "./lang/en";
import { zhHans } from "./lang/zh-hans";
import { zhHant } from "./lang/zh-hant";
import { savedStore } from "./store";

export type Words = { [K in keyof typeof en]: string };
export type WordKey = keyof typeof en;

export const languages = {
  en: { name: "English", words: en as Words },
  "zh-Hans": { name: "简体中文", words: zhHans },
  "zh-Hant": { name: "繁體中文", words: zhHant },
} as const;
export type Language = keyof typeof languages;

const isLanguage = (x: unknown): x is Language => typeof x === "string" && Object.hasOwn(languages, x);

function preferred(): Language {
  for (const tag of navigator.languages ?? []) {
    if (/^zh\b.*(hant|tw|hk|mo)/i.test(tag)) return "zh-Hant";
    if (/^zh\b/i.test(tag)) return "zh-Hans";
    if (/^en\b/i.test(tag)) return "en";
  }
  return "en";
}

export const language = savedStore<Language>("tandem.language", preferred(), (x) => (isLanguage(x) ? x : undefined));

// Returns the words of a key, with {name} replaced.
export function t(key: WordKey, values: Record<string, string | number> = {}): string {
  return languages[language.get()].words[key].replace(/\{(\w+)\}/g, (all, name: string) =>
    Object.hasOwn(values, name) ? String(values[name]) : all);
}

// Returns the words of a key that is made of data, or the data itself when there are none.
export function word(key: string, fallback: string): string {
  return Object.hasOwn(en, key) ? t(key as WordKey) : fallback;
}

const formats = new Map<string, Intl.NumberFormat>();
function format(options: Intl.NumberFormatOptions): Intl.NumberFormat {
  const id = language.get() + JSON.stringify(options);
  let f = formats.get(id);
  if (!f) formats.set(id, (f = new Intl.NumberFormat(language.get(), options)));
  return f;
}

export const whole = (x: number): string => format({ maximumFractionDigits: 0 }).format(x);
// Three digits that matter: 0.123, 1.23, 12.3, 123, 1,234.
export function number(x: number): string {
  const digits = x === 0 || Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2;
  return format({ minimumFractionDigits: digits, maximumFractionDigits: digits }).format(x);
}
export const percent = (x: number): string => format({ style: "percent", maximumFractionDigits: x > 0 && x < 0.1 ? 1 : 0 }).format(x);
export function bytes(x: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (x >= 1000 && i < units.length - 1) x /= 1000, i++;
  return `${i ? number(x) : whole(x)} ${units[i]}`;
}
export function seconds(x: number): string {
  if (x > 0 && x < 0.001) return `${number(x * 1e6)} µs`;
  if (x < 1) return `${number(x * 1e3)} ms`;
  if (x < 120) return `${number(x)} s`;
  if (x < 7200) return `${whole(x / 60)} min`;
  return `${whole(x / 3600)} h`;
}
export const time = (ms: number): string =>
  new Intl.DateTimeFormat(language.get(), { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }).format(ms);
export const date = (ms: number): string =>
  new Intl.DateTimeFormat(language.get(), { dateStyle: "medium", timeStyle: "short" }).format(ms);
