// Conversations: kept in this browser only.
import { savedStore, store } from "./store";

export type Run = [method: string, characters: number];
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}
export interface Timings {
  predicted_n: number;
  predicted_ms: number;
  predicted_per_second: number;
  prompt_ms: number;
  cache_n: number;
  prompt_n: number;
  draft_n?: number;
  draft_n_accepted?: number;
  acceptance_length?: number;
  route?: string;
  route_reason?: string;
}
// One response of the model.
export interface Answer {
  content: string;
  reasoning: string;
  calls: ToolCall[];
  runs: Run[]; // which token each character of the content comes from
  finish?: string | undefined;
  error?: string | undefined;
  timings?: Timings | undefined;
}
export interface Message {
  role: "user" | "assistant" | "tool";
  content: string;
  images?: string[]; // data URLs
  callId?: string; // of a tool's result
  answer?: Answer; // of the assistant
  plain?: Answer | undefined; // the same prompt without speculation
}
export interface Conversation {
  id: string;
  title: string;
  messages: Message[];
}

const LIMIT = 30;
const isList = (x: unknown): x is Conversation[] => Array.isArray(x) && x.every((c) => typeof c?.id === "string" && Array.isArray(c?.messages));
export const emptyAnswer = (): Answer => ({ content: "", reasoning: "", calls: [], runs: [] });
const fresh = (): Conversation => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", messages: [] });

export const conversations = savedStore<Conversation[]>("tandem.conversations", [fresh()], (x) => (isList(x) && x.length ? x : undefined),
  (all) => all.map((c) => ({ ...c, messages: c.messages.map(({ images: _, ...m }) => m) }))); // without its pictures
export const currentId = store(conversations.get()[0]!.id);

export const current = (): Conversation => conversations.get().find((c) => c.id === currentId.get()) ?? conversations.get()[0]!;

export function change(id: string, messages: (now: Message[]) => Message[]): void {
  conversations.update((all) => all.map((c) => {
    if (c.id !== id) return c;
    const next = messages(c.messages), first = next.find((m) => m.role === "user")?.content ?? "";
    return { ...c, messages: next, title: [...first].slice(0, 40).join("") };
  }));
}
export function begin(): void {
  if (!current().messages.length) return;
  const c = fresh();
  conversations.update((all) => [c, ...all].slice(0, LIMIT));
  currentId.set(c.id);
}
export function remove(id: string): void {
  const rest = conversations.get().filter((c) => c.id !== id);
  conversations.set(rest.length ? rest : [fresh()]);
  currentId.set(conversations.get()[0]!.id);
}
