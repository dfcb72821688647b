// Settings: every one with its meaning, bounds and source; changes are applied together or not at all.
import { useState } from "preact/hooks";
import { errorText, sendJson } from "../api";
import { bytes, language, t, whole, word } from "../i18n";
import { affects, settingHelp } from "../lang/settings";
import { Card, Empty, Problem } from "../parts";
import { usePolled } from "../poll";
import { visible } from "../text";

type Value = boolean | number | string;
interface Setting {
  value: Value;
  default: Value;
  kind: "boolean" | "integer" | "number" | "string";
  min?: number;
  max?: number;
  max_length?: number;
  word?: string;
  trained_length?: number;
  source: string;
  live: boolean;
  pending: boolean;
  help: string;
}
interface Reply {
  model: string;
  settings: Record<string, Setting>;
  warnings: string[];
}
interface Part {
  id: string;
  role: "model" | "drafter";
  family: string;
  state: string;
  error: string | null;
  quantisation: string | null;
  weight_bytes: number;
  context: number;
  path: string;
  kv_bytes?: number;
  device?: string;
}

const groups: [string, (name: string) => boolean][] = [
  ["speculation", (n) => n.startsWith("dflash_") || n.startsWith("mtp_") || n.startsWith("ngram") || n.startsWith("tree")],
  ["queue", (n) => n.startsWith("queue_") || n.startsWith("max_") || n.startsWith("media_") || n.startsWith("image_") || n.endsWith("timeout_ms") || n === "default_max_tokens"],
  ["memory", (n) => n.startsWith("kv_") || n === "sparse_fa" || n.startsWith("session_")],
  ["log", (n) => n.startsWith("routing_")],
];
const groupOf = (name: string) => groups.find(([, has]) => has(name))?.[0] ?? "other";

// Returns the value of a field's text; null: it is not one of the setting.
function parse(s: Setting, text: string): Value | null {
  if (s.kind === "string") return text.length <= (s.max_length ?? 1e9) ? text : null;
  if (s.word && text === s.word) return text;
  const x = Number(text);
  if (text.trim() === "" || !Number.isFinite(x) || (s.kind === "integer" && !Number.isInteger(x))) return null;
  return (s.min === undefined || x >= s.min) && (s.max === undefined || x <= s.max) ? x : null;
}

function bounds(s: Setting): string {
  const range = s.min !== undefined && s.max !== undefined ? t("settings.range", { min: whole(s.min) === "0" ? "0" : String(s.min), max: s.max >= 2 ** 53 ? "∞" : whole(s.max) }) : "";
  return [range, s.word && t("settings.or", { word: s.word }), s.max_length && t("settings.length", { n: whole(s.max_length) })].filter(Boolean).join(" ");
}

// The meaning of a setting: the server's words, or a translation of them.
function helpOf(name: string, s: Setting): string {
  const of = language.get();
  return (of === "en" ? undefined : settingHelp[of][name]) ?? visible(s.help);
}

function Field(p: { name: string; s: Setting; edit: string | undefined; onEdit: (text: string | undefined) => void }) {
  const { s, name } = p, now = String(s.value), text = p.edit ?? now, bad = p.edit !== undefined && s.kind !== "boolean" && parse(s, text) === null;
  const over = s.trained_length && Number(text) > s.trained_length, id = `set-${name}`;
  return (
    <div class={`setting ${p.edit !== undefined ? "changed" : ""}`}>
      <div>
        <label for={id}><code>{name}</code></label>
        <p class="quiet">{helpOf(name, s)}</p>
        <p class="tags">
          <span class={s.live ? "tag good" : "tag"}>{s.live ? t("settings.live") : t("settings.load")}</span>
          <span class="tag">{word(`source.${s.source}`, s.source)}</span>
          {affects[name] && <span class="tag">{t("settings.affects", { what: affects[name].map((k) => t(k)).join(t("list")) })}</span>}
          {s.pending && <span class="tag warn">{t("settings.pending")}</span>}
          {String(s.default) !== now && <span class="tag">{t("settings.default", { value: String(s.default) || "–" })}</span>}
        </p>
      </div>
      <div class="value">
        {s.kind === "boolean" ? <select id={id} value={text} onChange={(e) => p.onEdit(e.currentTarget.value === now ? undefined : e.currentTarget.value)}>
          <option value="true">{t("yes")}</option><option value="false">{t("no")}</option></select>
          : <input id={id} value={text} aria-invalid={bad} aria-describedby={`${id}-b`} inputMode={s.kind === "string" || s.word ? "text" : "decimal"}
              onInput={(e) => p.onEdit(e.currentTarget.value === now ? undefined : e.currentTarget.value)} />}
        <span id={`${id}-b`} class={bad ? "small bad" : "small quiet"}>{bounds(s)}</span>
        {s.trained_length && <span class={over ? "small warn-text" : "small quiet"}>{t(over ? "settings.trained_bound" : "settings.trained", { n: whole(s.trained_length) })}</span>}
      </div>
    </div>
  );
}

function Models({ parts, again }: { parts: Part[]; again: () => void }) {
  const [busy, setBusy] = useState(""), [problem, setProblem] = useState("");
  const move = async (p: Part, what: "park" | "unpark") => {
    setBusy(p.id);
    setProblem("");
    try {
      await sendJson("POST", `/api/models/${encodeURIComponent(p.id)}/${what}`, {});
    } catch (e) {
      setProblem(errorText(e));
    }
    setBusy("");
    again();
  };
  return (
    <Card title={t("models.title")} note={t("models.note")} class="wide">
      {problem && <Problem text={problem} />}
      <ul class="parts">{parts.map((p) => {
        const away = p.state === "parked" || p.state === "failed";
        return (
          <li key={p.id}>
            <div><b><bdi>{visible(p.id)}</bdi></b> <span class="quiet">{word(`role.${p.role}`, p.role)} · {visible(p.family)} {p.quantisation && `· ${visible(p.quantisation)}`} · {bytes(p.weight_bytes)}
              {p.context > 0 && ` · ${t("models.context", { n: whole(p.context) })}`}</span>
              {p.error && <p class="warn-text">{visible(p.error)}</p>}</div>
            <span class="state"><i class={`dot s-${p.state}`} />{word(`state.${p.state}`, p.state)}</span>
            <button type="button" disabled={busy === p.id || p.state === "loading" || p.state === "parking"} onClick={() => move(p, away ? "unpark" : "park")}>
              {away ? t("models.unpark") : t("models.park")}</button>
          </li>
        );
      })}</ul>
    </Card>
  );
}

function Form({ reply, set }: { reply: Reply; set: (r: Reply) => void }) {
  const [edits, setEdits] = useState<Record<string, string>>({}), [problem, setProblem] = useState(""), [undo, setUndo] = useState<Record<string, Value>[]>([]);
  const [busy, setBusy] = useState(false), [find, setFind] = useState("");
  const names = Object.keys(edits), bad = names.filter((n) => reply.settings[n]!.kind !== "boolean" && parse(reply.settings[n]!, edits[n]!) === null);
  const valueOf = (n: string): Value => (reply.settings[n]!.kind === "boolean" ? edits[n] === "true" : parse(reply.settings[n]!, edits[n]!)!);
  const put = async (values: Record<string, Value>): Promise<boolean> => {
    setBusy(true);
    setProblem("");
    try {
      set(await sendJson<Reply>("PUT", `/api/models/${encodeURIComponent(reply.model)}/settings`, values));
      return true;
    } catch (e) {
      setProblem(errorText(e));
      return false;
    } finally {
      setBusy(false);
    }
  };
  const apply = async (e: Event) => {
    e.preventDefault();
    const old = Object.fromEntries(names.map((n) => [n, reply.settings[n]!.value]));
    if (!(await put(Object.fromEntries(names.map((n) => [n, valueOf(n)]))))) return;
    setEdits({});
    setUndo([...undo.slice(-9), old]);
  };
  const takeBack = async () => (await put(undo.at(-1)!)) && setUndo(undo.slice(0, -1));
  const edit = (n: string, text: string | undefined) => setEdits(({ [n]: _, ...rest }) => (text === undefined ? rest : { ...rest, [n]: text }));
  const shown = Object.entries(reply.settings).filter(([n, s]) => !find || `${n} ${s.help} ${helpOf(n, s)}`.toLowerCase().includes(find.toLowerCase()));
  return (
    <form class="wide settings" onSubmit={apply}>
      <div class="sticky row">
        <label class="grow"><span class="hidden">{t("settings.find")}</span><input type="search" placeholder={t("settings.find")} value={find} onInput={(e) => setFind(e.currentTarget.value)} /></label>
        <button type="submit" class="primary" disabled={busy || !names.length || bad.length > 0}>{t("settings.apply", { n: whole(names.length) })}</button>
        <button type="button" disabled={!names.length} onClick={() => setEdits({})}>{t("settings.drop")}</button>
        <button type="button" disabled={busy || !undo.length} onClick={takeBack}>{t("settings.undo")}</button>
      </div>
      {problem && <Problem text={problem} />}
      {reply.warnings.map((w) => <div key={w} class="notice">{visible(w)}</div>)}
      {[...groups.map(([g]) => g), "other"].map((g) => {
        const own = shown.filter(([n]) => groupOf(n) === g);
        return own.length ? <Card key={g} title={word(`group.${g}`, g)}>{own.map(([n, s]) => <Field key={n} name={n} s={s} edit={edits[n]} onEdit={(x) => edit(n, x)} />)}</Card> : null;
      })}
    </form>
  );
}

export function SettingsView() {
  const parts = usePolled<{ data: Part[] }>("/api/models", 3000), model = parts.data?.data[0]?.id ?? "";
  if (parts.denied) return <div class="grid"><Empty title={t("admin_only")} /></div>;
  if (!parts.data) return <div class="grid">{parts.problem ? <Problem text={parts.problem} onRetry={parts.again} /> : <Empty title={t("live.waiting")} />}</div>;
  return <div class="grid"><Models parts={parts.data.data} again={parts.again} /><SettingsOf key={model} model={model} /></div>;
}

function SettingsOf({ model }: { model: string }) {
  const got = usePolled<Reply>(`/api/models/${encodeURIComponent(model)}/settings`, 0), [changed, setChanged] = useState<Reply | null>(null);
  const reply = changed ?? got.data;
  if (!reply) return got.problem ? <Problem text={got.problem} onRetry={got.again} /> : <Empty title={t("live.waiting")} />;
  return <Form reply={reply} set={setChanged} />;
}
