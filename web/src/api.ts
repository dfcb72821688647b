// Calls of the server's API. The key is kept for this tab only.
import { store } from "./store";

const KEY = "tandem.key";

function storedKey(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export const key = store(storedKey());
key.subscribe(() => {
  try {
    sessionStorage.setItem(KEY, key.get());
  } catch {
    // memory only
  }
});
// The server refused a call for lack of a valid key: the page asks for one.
export const needsKey = store(false);

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string | null, message: string) {
    super(message);
  }
}

function messageOf(body: any, status: number): { message: string; code: string | null } {
  const error = body?.error;
  if (typeof error === "string") return { message: error, code: null };
  if (typeof error?.message === "string") return { message: error.message, code: error.code ?? null };
  return { message: `HTTP ${status}`, code: null };
}

export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${key.get()}`);
  if (init.body) headers.set("Content-Type", "application/json");
  const response = await fetch(path, { ...init, headers, cache: "no-store" });
  if (response.ok) return response;
  if (response.status === 401) needsKey.set(true);
  let body: unknown;
  try {
    body = await response.json();
  } catch {
    body = null;
  }
  const { message, code } = messageOf(body, response.status);
  throw new ApiError(response.status, code, message);
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await call(path, signal ? { signal } : {})).json();
}

export async function sendJson<T>(method: string, path: string, body?: unknown): Promise<T> {
  return (await call(path, { method, ...(body === undefined ? {} : { body: JSON.stringify(body) }) })).json();
}

export interface ServerEvent {
  event: string;
  data: string;
}

// Reads server-sent events; comments are skipped.
export async function* events(response: Response): AsyncGenerator<ServerEvent> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop()!;
      for (const block of blocks) {
        const e = { event: "message", data: "" };
        for (const line of block.split("\n")) {
          if (line.startsWith("data: ")) e.data += line.slice(6);
          if (line.startsWith("event: ")) e.event = line.slice(7);
        }
        if (e.data) yield e;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export const errorText = (e: unknown): string => (e instanceof Error ? e.message : String(e));
