// Chat: a conversation with the model, with the drafted tokens tinted, and the same prompt without speculation.
import { useEffect, useRef, useState } from "preact/hooks";
import { errorText, getJson } from "../api";
import { begin, change, conversations, current, currentId, emptyAnswer, remove, type Answer, type Message, type Run } from "../conversations";
import { generate, type Options } from "../generate";
import { bytes, number, percent, seconds, t, whole, word } from "../i18n";
import { Copy, Empty, Method, Problem } from "../parts";
import { savedStore, store, useStore } from "../store";
import { download, visible } from "../text";

const methods = ["auto", "off", "dflash", "tree", "mtp", "ngram"];
const initial: Options = { method: "auto", temperature: 0, top_p: 1, top_k: 0, min_p: 0, presence_penalty: 0, frequency_penalty: 0, max_tokens: 512, seed: 0, think: false, system: "", tools: "", session: "" };
const options = savedStore<Options>("tandem.chat", initial, (x) => ({ ...initial, ...(x as object) }));
const tint = savedStore("tandem.tint", true, (x) => x === true);
const compare = savedStore("tandem.compare", false, (x) => x === true);
const busy = store<AbortController | null>(null);
const sees = store(false); // the model takes pictures

const setAt = (id: string, i: number, more: Partial<Message>) => change(id, (all) => all.map((m, k) => (k === i ? { ...m, ...more } : m)));

// Sends the conversation as it stands, and streams the response to its end.
async function respond(): Promise<void> {
  const { id, messages } = current(), o = options.get(), stop = new AbortController(), at = messages.length;
  busy.set(stop);
  change(id, (all) => [...all, { role: "assistant", content: "", answer: emptyAnswer() }]);
  const answer = await generate(messages, o, o.method, stop.signal, (a) => setAt(id, at, { answer: a, content: a.content }));
  if (compare.get() && !answer.error && !stop.signal.aborted) {
    setAt(id, at, { plain: emptyAnswer() });
    await generate(messages, o, "off", stop.signal, (a) => setAt(id, at, { plain: a }));
  }
  busy.set(null);
}

function send(text: string, images: string[]): void {
  change(currentId.get(), (all) => [...all, { role: "user", content: text, ...(images.length ? { images } : {}) }]);
  respond();
}
function sendResult(callId: string, text: string): void {
  change(currentId.get(), (all) => [...all, { role: "tool", content: text, callId }]);
  respond();
}
// Keeps the messages before i and sends again.
function resend(i: number, text?: string): void {
  change(currentId.get(), (all) => all.slice(0, text === undefined ? i : i + 1).map((m, k) => (k === i && text !== undefined ? { ...m, content: text } : m)));
  respond();
}

function Tinted({ text, runs }: { text: string; runs: Run[] }) {
  const on = useStore(tint), all = [...text], parts = [];
  if (!on || !runs.length) return <>{visible(text)}</>;
  let at = 0;
  for (let i = 0; i < runs.length && at < all.length; i++) {
    const [method, n] = runs[i]!;
    parts.push(<span key={i} class={`tok m-${method}`} title={word(`method.${method}`, method)}>{visible(all.slice(at, at + n).join(""))}</span>);
    at += n;
  }
  return <>{parts}{visible(all.slice(at).join(""))}</>;
}

function Facts({ a }: { a: Answer }) {
  const x = a.timings;
  if (!x) return null;
  const drafted = a.runs.filter((r) => r[0] !== "off").length;
  return (
    <p class="answer-facts">
      <span><b>{number(x.predicted_per_second)}</b> {t("tokens_per_s")}</span>
      <span>{t("chat.tokens", { n: whole(x.predicted_n) })}</span>
      <span>{t("chat.first", { t: seconds(x.prompt_ms / 1e3) })}</span>
      {x.cache_n > 0 && <span>{t("chat.cached", { n: whole(x.cache_n) })}</span>}
      {drafted > 0 && <span>{t("chat.drafted", { p: percent(drafted / a.runs.length) })}</span>}
      {x.route && <span><Method name={x.route} /> {x.route_reason && word(`reason.${x.route_reason}`, visible(x.route_reason))}</span>}
    </p>
  );
}

function Verdict({ a, b }: { a: Answer; b: Answer }) {
  if (!a.timings || !b.timings) return <p class="verdict">{t("compare.running")}</p>;
  const same = a.content === b.content && a.reasoning === b.reasoning, ratio = a.timings.predicted_per_second / b.timings.predicted_per_second;
  return (
    <p class={`verdict ${same ? "good" : "bad"}`} role="status">
      <b>{same ? t("compare.same") : t("compare.different")}</b> {t("compare.ratio", {
        ratio: number(ratio), a: number(a.timings.predicted_per_second), b: number(b.timings.predicted_per_second) })}
    </p>
  );
}

function Result({ id }: { id: string }) {
  const [text, setText] = useState("");
  return (
    <form class="row" onSubmit={(e) => (e.preventDefault(), sendResult(id, text))}>
      <label class="grow"><span class="hidden">{t("chat.result")}</span>
        <input value={text} placeholder={t("chat.result")} onInput={(e) => setText(e.currentTarget.value)} /></label>
      <button type="submit">{t("chat.send_result")}</button>
    </form>
  );
}

function AnswerBox({ a, title, live, last }: { a: Answer; title?: string; live: boolean; last: boolean }) {
  return (
    <div class="answer">
      {title && <h3>{title}</h3>}
      {a.reasoning && <details class="thought"><summary>{t("chat.thought")}</summary><div class="text" dir="auto">{visible(a.reasoning)}</div></details>}
      {a.content && <div class="text" dir="auto"><Tinted text={a.content} runs={a.runs} /></div>}
      {a.calls.map((c) => (
        <div class="tool" key={c.id}>
          <b>{t("chat.call")} <bdi>{visible(c.name)}</bdi></b>
          <pre tabIndex={0}><code>{visible(c.arguments)}</code></pre>
          {last && !live && <Result id={c.id} />}
        </div>
      ))}
      {live && !a.content && !a.calls.length && <p class="quiet">{a.reasoning ? t("chat.thinking") : t("chat.waiting")}</p>}
      {a.error && <Problem text={a.error} />}
      {a.finish === "length" && <p class="quiet">{t("chat.length")}</p>}
      {a.finish === "stopped" && <p class="quiet">{t("chat.stopped")}</p>}
      <Facts a={a} />
    </div>
  );
}

function UserMessage({ m, i }: { m: Message; i: number }) {
  const [text, setText] = useState<string | null>(null), running = useStore(busy);
  if (text !== null)
    return (
      <form class="message user" onSubmit={(e) => (e.preventDefault(), setText(null), resend(i, text))}>
        <label><span class="hidden">{t("chat.edit")}</span>
          <textarea rows={3} value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>
        <div class="row"><button class="primary" type="submit">{t("chat.send")}</button><button type="button" onClick={() => setText(null)}>{t("cancel")}</button></div>
      </form>
    );
  return (
    <article class="message user">
      <h2 class="hidden">{t("chat.you")}</h2>
      {m.images?.map((src, k) => <img key={k} src={src} alt={t("chat.picture")} />)}
      <div class="text" dir="auto">{visible(m.content)}</div>
      <div class="tools"><Copy text={m.content} />
        <button type="button" class="quiet" disabled={!!running} onClick={() => setText(m.content)}>{t("chat.edit")}</button></div>
    </article>
  );
}

function AssistantMessage({ m, i, last }: { m: Message; i: number; last: boolean }) {
  const running = useStore(busy), live = last && !!running, a = m.answer!;
  return (
    <article class="message assistant" aria-busy={live}>
      <h2 class="hidden">{t("chat.model")}</h2>
      {m.plain && <Verdict a={a} b={m.plain} />}
      <div class={m.plain ? "pair" : ""}>
        <AnswerBox a={a} live={live && !m.plain} last={last} {...(m.plain ? { title: t("compare.with") } : {})} />
        {m.plain && <AnswerBox a={m.plain} live={live} last={false} title={t("compare.without")} />}
      </div>
      {!live && <div class="tools"><Copy text={a.content} />
        {last && <button type="button" class="quiet" onClick={() => resend(i)}>{t("chat.again")}</button>}</div>}
    </article>
  );
}

function NumberField(p: { label: string; name: "temperature" | "top_p" | "top_k" | "min_p" | "presence_penalty" | "frequency_penalty" | "max_tokens" | "seed"; min: number; max: number; step: number }) {
  const o = useStore(options);
  return (
    <label class="field"><span>{p.label}</span>
      <input type="number" min={p.min} max={p.max} step={p.step} value={o[p.name]}
        onInput={(e) => e.currentTarget.validity.valid && e.currentTarget.value !== "" && options.set({ ...o, [p.name]: Number(e.currentTarget.value) })} /></label>
  );
}

function Controls() {
  const o = useStore(options), on = useStore(tint), both = useStore(compare);
  return (
    <aside class="controls" aria-label={t("chat.options")}><details class="fold" open={matchMedia("(min-width: 44rem)").matches}>
      <summary>{t("chat.options")}</summary>
      <label class="switch"><input type="checkbox" checked={on} onChange={(e) => tint.set(e.currentTarget.checked)} /> {t("chat.tint")}</label>
      {on && <p class="key">{["dflash", "tree", "mtp", "ngram", "grammar"].map((m) => <span key={m} class={`tok m-${m}`}>{word(`method.${m}`, m)}</span>)}<span class="tok">{t("chat.own")}</span></p>}
      <label class="switch"><input type="checkbox" checked={both} onChange={(e) => compare.set(e.currentTarget.checked)} /> {t("chat.compare")}</label>
      <label class="field"><span>{t("method")}</span>
        <select value={o.method} onChange={(e) => options.set({ ...o, method: e.currentTarget.value })}>
          {methods.map((m) => <option key={m} value={m}>{word(`method.${m}`, m)}</option>)}</select></label>
      <NumberField label={t("chat.temperature")} name="temperature" min={0} max={100} step={0.1} />
      <NumberField label={t("chat.max_tokens")} name="max_tokens" min={1} max={1048576} step={1} />
      <details><summary>{t("chat.more")}</summary>
        <NumberField label="top_p" name="top_p" min={0} max={1} step={0.01} />
        <NumberField label="top_k" name="top_k" min={0} max={1000000} step={1} />
        <NumberField label="min_p" name="min_p" min={0} max={1} step={0.01} />
        <NumberField label={t("chat.repetition")} name="presence_penalty" min={-2} max={2} step={0.1} />
        <NumberField label={t("chat.frequency")} name="frequency_penalty" min={-2} max={2} step={0.1} />
        <NumberField label={t("chat.seed")} name="seed" min={0} max={2147483647} step={1} />
        <label class="switch"><input type="checkbox" checked={o.think} onChange={(e) => options.set({ ...o, think: e.currentTarget.checked })} /> {t("chat.think")}</label>
        <label class="field"><span>{t("chat.system")}</span>
          <textarea rows={2} value={o.system} onInput={(e) => options.set({ ...o, system: e.currentTarget.value })} /></label>
        <label class="field"><span>{t("chat.tools")}</span>
          <textarea rows={3} class="mono" value={o.tools} onInput={(e) => options.set({ ...o, tools: e.currentTarget.value })} /></label>
        <label class="field"><span>{t("chat.session")}</span>
          <input pattern="[A-Za-z0-9_\-][A-Za-z0-9._\-]*" maxLength={64} value={o.session} onInput={(e) => options.set({ ...o, session: e.currentTarget.value })} /></label>
      </details>
    </details></aside>
  );
}

const readPicture = (f: Blob) => new Promise<string>((done, fail) => {
  const r = new FileReader();
  r.onload = () => done(String(r.result));
  r.onerror = () => fail(r.error);
  r.readAsDataURL(f);
});

const MAX_PICTURE = 20e6; // bytes

function Composer() {
  const over = useRef(0), [dropping, setDropping] = useState(false), [text, setText] = useState(""), [images, setImages] = useState<string[]>([]), [problem, setProblem] = useState("");
  const running = useStore(busy), pictures = useStore(sees);
  const add = async (files: Iterable<File>) => {
    setProblem("");
    for (const f of files) {
      if (!pictures) return setProblem(t("chat.no_pictures"));
      if (!f.type.startsWith("image/")) return setProblem(t("chat.not_picture"));
      if (f.size > MAX_PICTURE) return setProblem(t("chat.too_large", { n: bytes(MAX_PICTURE) }));
      const url = await readPicture(f);
      setImages((all) => [...all, url]);
    }
  };
  const submit = (e?: Event) => {
    e?.preventDefault();
    if (running || !text.trim()) return;
    try {
      if (options.get().tools.trim()) JSON.parse(options.get().tools);
    } catch (x) {
      return setProblem(`${t("chat.tools")}: ${errorText(x)}`);
    }
    setProblem("");
    send(text, images);
    setText("");
    setImages([]);
  };
  return (
    <form class={`composer ${dropping ? "dropping" : ""}`} onSubmit={submit} onDragOver={(e) => e.preventDefault()}
      onDragEnter={() => setDropping(++over.current > 0)} onDragLeave={() => setDropping(--over.current > 0)}
      onDrop={(e) => (e.preventDefault(), setDropping((over.current = 0) > 0), add(e.dataTransfer?.files ?? []))}>
      {dropping && <p class="drop">{pictures ? t("chat.drop") : t("chat.no_pictures")}</p>}
      {problem && <Problem text={problem} />}
      {images.length > 0 && <p class="thumbs">{images.map((src, i) => (
        <button key={i} type="button" title={t("remove")} onClick={() => setImages(images.filter((_, k) => k !== i))}><img src={src} alt={t("chat.picture")} /></button>))}</p>}
      <label class="grow"><span class="hidden">{t("chat.message")}</span>
        <textarea rows={2} value={text} placeholder={t("chat.placeholder")} onInput={(e) => setText(e.currentTarget.value)}
          onPaste={(e) => add(e.clipboardData?.files ?? [])}
          onKeyDown={(e) => e.key === "Enter" && !e.shiftKey && !e.isComposing && submit(e)} /></label>
      {pictures && <label class="button attach">{t("chat.attach")}<input class="hidden" type="file" accept="image/*" multiple
        onChange={(e) => (add([...(e.currentTarget.files ?? [])]), (e.currentTarget.value = ""))} /></label>}
      {running ? <button type="button" class="primary" onClick={() => running.abort()}>{t("chat.stop")}</button>
        : <button type="submit" class="primary" disabled={!text.trim()}>{t("chat.send")}</button>}
    </form>
  );
}

function Bar() {
  const all = useStore(conversations), id = useStore(currentId), running = useStore(busy), now = current();
  return (
    <div class="chat-bar row">
      <label class="grow"><span class="hidden">{t("chat.conversations")}</span>
        <select value={id} disabled={!!running} onChange={(e) => currentId.set(e.currentTarget.value)}>
          {all.map((c) => <option key={c.id} value={c.id}>{visible(c.title) || t("chat.untitled")}</option>)}</select></label>
      <button type="button" disabled={!!running || !now.messages.length} onClick={begin}>{t("chat.new")}</button>
      <button type="button" class="quiet" disabled={!now.messages.length} onClick={() => download("conversation.json", "application/json", JSON.stringify(now, null, 2))}>{t("chat.export")}</button>
      <button type="button" class="quiet" disabled={!!running || !now.messages.length} onClick={() => remove(id)}>{t("delete")}</button>
    </div>
  );
}

export function ChatView() {
  useStore(conversations);
  useStore(currentId);
  const { messages } = current(), list = useRef<HTMLDivElement>(null), follows = useRef(true);
  useEffect(() => {
    getJson<{ modalities?: { vision?: boolean } }>("/props").then((p) => sees.set(!!p.modalities?.vision), () => undefined);
  }, []);
  useEffect(() => {
    if (follows.current) list.current?.scrollTo({ top: list.current.scrollHeight });
  });
  const onScroll = (e: { currentTarget: HTMLElement }) => {
    const x = e.currentTarget;
    follows.current = x.scrollHeight - x.scrollTop - x.clientHeight < 60;
  };
  return (
    <div class="chat">
      <Controls />
      <div class="talk">
        <Bar />
        <div class="messages" ref={list} onScroll={onScroll} tabIndex={0} role="log" aria-label={t("chat.messages")}>
          {!messages.length && <Empty title={t("chat.empty")}>
            <p class="row center">{(["chat.example1", "chat.example2", "chat.example3"] as const).map((k) => (
              <button key={k} type="button" onClick={() => send(t(k), [])}>{t(k)}</button>))}</p>
          </Empty>}
          {messages.map((m, i) => (m.role === "assistant" ? <AssistantMessage key={i} m={m} i={i} last={i === messages.length - 1} />
            : m.role === "user" ? <UserMessage key={i} m={m} i={i} />
            : <article key={i} class="message user"><h2 class="hidden">{t("chat.result")}</h2><div class="text mono" dir="auto">{visible(m.content)}</div></article>))}
        </div>
        <Composer />
      </div>
    </div>
  );
}
