// Streams one response, with the method that drafted each token.
import { call, errorText, events } from "./api";
import { emptyAnswer, type Answer, type Message, type Run } from "./conversations";

export interface Options {
  method: string;
  temperature: number;
  top_p: number;
  top_k: number;
  min_p: number;
  presence_penalty: number;
  frequency_penalty: number;
  max_tokens: number;
  seed: number;
  think: boolean;
  system: string;
  tools: string; // JSON
  session: string;
}

function contentOf(m: Message): unknown {
  if (!m.images?.length) return m.content;
  return [...m.images.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text: m.content }];
}

function messageOf(m: Message): unknown {
  if (m.role === "tool") return { role: "tool", tool_call_id: m.callId, content: m.content };
  if (m.role === "user") return { role: "user", content: contentOf(m) };
  const a = m.answer!;
  return {
    role: "assistant", content: a.content,
    ...(a.calls.length ? { tool_calls: a.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments || "{}" } })) } : {}),
  };
}

function bodyOf(messages: Message[], o: Options, method: string): unknown {
  return {
    messages: [...(o.system ? [{ role: "system", content: o.system }] : []), ...messages.map(messageOf)],
    temperature: o.temperature, top_p: o.top_p, top_k: o.top_k, min_p: o.min_p, presence_penalty: o.presence_penalty, frequency_penalty: o.frequency_penalty, max_tokens: o.max_tokens, seed: o.seed,
    enable_thinking: o.think, speculative: method, stream: true, return_drafts: true, stream_options: { include_usage: true },
    ...(o.tools.trim() ? { tools: JSON.parse(o.tools) } : {}), ...(o.session ? { session: o.session } : {}),
  };
}

function takeCalls(a: Answer, deltas: any[]): void {
  for (const d of deltas) {
    const c = (a.calls[d.index ?? 0] ??= { id: "", name: "", arguments: "" });
    if (d.id) c.id = d.id;
    if (d.function?.name) c.name = d.function.name;
    if (d.function?.arguments) c.arguments += d.function.arguments;
  }
}

function takeChunk(a: Answer, chunk: any): void {
  if (chunk.error) throw new Error(chunk.error.message);
  const choice = chunk.choices?.[0];
  if (choice?.delta?.content) {
    a.content += choice.delta.content;
    a.runs.push(...((choice.drafts ?? []) as Run[]));
  }
  if (choice?.delta?.reasoning_content) a.reasoning += choice.delta.reasoning_content;
  if (choice?.delta?.tool_calls) takeCalls(a, choice.delta.tool_calls);
  if (choice?.finish_reason) a.finish = choice.finish_reason;
  if (chunk.timings) a.timings = chunk.timings;
}

// Calls `show` with copies of the answer as it grows, at most once per frame.
export async function generate(messages: Message[], o: Options, method: string, signal: AbortSignal, show: (a: Answer) => void): Promise<Answer> {
  const a = emptyAnswer();
  let frame = 0;
  const copy = (): Answer => ({ ...a, calls: a.calls.map((c) => ({ ...c })), runs: [...a.runs] });
  const later = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      show(copy());
    });
  };
  try {
    const response = await call("/v1/chat/completions", { method: "POST", body: JSON.stringify(bodyOf(messages, o, method)), signal });
    for await (const e of events(response)) {
      if (e.data === "[DONE]") break;
      takeChunk(a, JSON.parse(e.data));
      later();
    }
  } catch (e) {
    if (signal.aborted) a.finish = "stopped";
    else a.error = errorText(e);
  }
  cancelAnimationFrame(frame);
  show(copy());
  return copy();
}
