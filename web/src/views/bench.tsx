// Bench: a paired benchmark on the serving engine, its result, and earlier ones.
import { call, errorText, events } from "../api";
import { arms, svgOf, type Arm, type Result } from "../bench";
import { date, number, percent, seconds, t, whole, word } from "../i18n";
import { Card, Empty, Method, Problem } from "../parts";
import { usePolled } from "../poll";
import { promptSets, type PromptSet } from "../sets";
import { store, useStore } from "../store";
import { download, visible } from "../text";

interface Plan {
  methods: string[];
  control: boolean;
  users: string;
  prompt_tokens: number;
  output_tokens: number;
  requests: number;
  repeats: number;
  set: PromptSet;
  prompts: string; // of the set "own", separated by empty lines
}
interface Running {
  done: number;
  of: number;
  stop: AbortController;
}
const all = ["off", "auto", "dflash", "tree", "mtp", "ngram"];
const plan = store<Plan>({ methods: ["off", "auto"], control: true, users: "1", prompt_tokens: 128, output_tokens: 64, requests: 2, repeats: 7, set: "records", prompts: "" });
const running = store<Running | null>(null);
const result = store<Result | null>(null);
const problem = store("");

function bodyOf(p: Plan): unknown {
  const methods = all.filter((m) => p.methods.includes(m));
  const prompts: string[] = p.set === "own" ? p.prompts.split(/\n\s*\n/).map((x) => x.trim()).filter(Boolean) : promptSets[p.set];
  return {
    methods: p.control ? [methods[0], ...methods] : methods, concurrency: p.users.split(/[\s,]+/).filter(Boolean).map(Number),
    output_tokens: p.output_tokens, requests: p.requests, repeats: p.repeats, stream: true,
    ...(prompts.length ? { prompts } : { prompt_tokens: p.prompt_tokens }),
  };
}

async function run(done: () => void): Promise<void> {
  const stop = new AbortController();
  running.set({ done: 0, of: 0, stop });
  problem.set("");
  try {
    const response = await call("/api/bench", { method: "POST", body: JSON.stringify(bodyOf(plan.get())), signal: stop.signal });
    for await (const e of events(response)) {
      const data = JSON.parse(e.data);
      if (e.event === "progress") running.set({ done: data.done, of: data.of, stop });
      if (e.event === "result") result.set(data);
      if (e.event === "error") problem.set(data.error?.message ?? "");
    }
  } catch (e) {
    if (!stop.signal.aborted) problem.set(errorText(e));
  }
  running.set(null);
  done();
}

export const armName = (a: Arm): string =>
  `${word(`method.${a.cell.method}`, a.cell.method)}${a.control ? ` (${t("bench.control")})` : ""}, ${t("bench.users", { n: whole(a.cell.concurrency) })}`;

function Plot({ r }: { r: Result }) {
  const rows = arms(r).filter((a) => a.ratio), most = Math.max(2, ...rows.map((a) => a.ratio!.high)) * 1.05, at = (v: number) => `${(v / most) * 100}%`;
  return (
    <div class="ratios" role="img" aria-label={rows.map((a) => `${armName(a)}: ${number(a.ratio!.median)}`).join("; ")}>
      {rows.map((a, i) => (
        <div key={i} class="ratio"><span>{armName(a)}</span>
          <div class="track"><i class="one" style={{ left: at(1) }} />
            <i class="range" style={{ left: at(a.ratio!.low), width: `calc(${at(a.ratio!.high)} - ${at(a.ratio!.low)})` }} />
            <i class="mid" style={{ left: at(a.ratio!.median) }} /></div>
          <b class="num">{number(a.ratio!.median)}×</b></div>
      ))}
    </div>
  );
}

function Shown({ r }: { r: Result }) {
  const title = t("bench.title", { model: r.model, p: whole(r.prompt_tokens), o: whole(r.output_tokens) });
  return (
    <Card title={visible(title)} class="wide" note={r.complete ? seconds(r.seconds) : t("bench.incomplete")} actions={<>
      <button type="button" class="quiet" onClick={() => download(`${r.id}.json`, "application/json", JSON.stringify(r, null, 2))}>JSON</button>
      <button type="button" class="quiet" onClick={() => download(`${r.id}.svg`, "image/svg+xml", svgOf(r, armName, title))}>SVG</button></>}>
      <p class={`verdict ${r.same_text ? "good" : "bad"}`}>{r.same_text ? t("bench.same") : t("bench.different")} {r.others > 0 && t("bench.others", { n: whole(r.others) })}</p>
      <Plot r={r} />
      <div class="scroll" tabIndex={0} role="region" aria-label={t("bench.table")}><table>
        <thead><tr><th>{t("method")}</th><th class="num">{t("bench.lanes")}</th><th class="num">{t("tokens_per_s")}</th><th class="num">{t("bench.ratio")}</th>
          <th class="num">{t("bench.interval")}</th><th class="num">{t("live.acceptance")}</th><th class="num">{t("latency.first_token")}</th></tr></thead>
        <tbody>{arms(r).map((a, i) => (
          <tr key={i}><td><Method name={a.cell.method} /> {a.control && t("bench.control")}</td><td class="num">{whole(a.cell.concurrency)}</td>
            <td class="num">{number(a.cell.tokens_per_s)}</td><td class="num">{a.ratio ? `${number(a.ratio.median)}×` : "1"}</td>
            <td class="num">{a.ratio ? `${number(a.ratio.low)} – ${number(a.ratio.high)}` : ""}</td>
            <td class="num">{a.cell.acceptance_rate ? percent(a.cell.acceptance_rate) : "–"}</td><td class="num">{seconds(a.cell.ttft_s.median)}</td></tr>))}
        </tbody></table></div>
    </Card>
  );
}

function Form({ done }: { done: () => void }) {
  const p = useStore(plan), now = useStore(running), set = (more: Partial<Plan>) => plan.set({ ...p, ...more });
  const count = (label: string, name: "prompt_tokens" | "output_tokens" | "requests" | "repeats", min: number, max: number, disabled = false) => (
    <label class="field"><span>{label}</span><input type="number" required min={min} max={max} value={p[name]} disabled={disabled}
      onInput={(e) => set({ [name]: Number(e.currentTarget.value) })} /></label>
  );
  return (
    <Card title={t("bench.new")} note={t("bench.new_note")}>
      <form onSubmit={(e) => (e.preventDefault(), run(done))}>
        <fieldset><legend>{t("bench.methods")}</legend><div class="row wrap">{all.map((m) => (
          <label key={m} class="switch"><input type="checkbox" checked={p.methods.includes(m)}
            onChange={(e) => set({ methods: e.currentTarget.checked ? [...p.methods, m] : p.methods.filter((x) => x !== m) })} /> <Method name={m} /></label>))}</div></fieldset>
        <label class="switch"><input type="checkbox" checked={p.control} onChange={(e) => set({ control: e.currentTarget.checked })} /> {t("bench.aa")}</label>
        <div class="fields">
          <label class="field"><span>{t("bench.lanes")}</span><input required pattern="\s*\d+([\s,]+\d+)*\s*" value={p.users} onInput={(e) => set({ users: e.currentTarget.value })} /></label>
          {count(t("bench.prompt"), "prompt_tokens", 16, 1048576, p.set !== "records")}
          {count(t("bench.output"), "output_tokens", 2, 65536)}
          {count(t("bench.requests"), "requests", 1, 64)}
          {count(t("bench.repeats"), "repeats", 1, 50)}
        </div>
        <label class="field"><span>{t("bench.set")}</span><select value={p.set} onChange={(e) => set({ set: e.currentTarget.value as PromptSet })}>
          {(Object.keys(promptSets) as PromptSet[]).map((k) => <option key={k} value={k}>{t(`set.${k}`)}</option>)}</select></label>
        {p.set === "own" && <label class="field"><span>{t("bench.prompts")}</span><textarea rows={3} required value={p.prompts} onInput={(e) => set({ prompts: e.currentTarget.value })} /></label>}
        {now ? <div class="row"><progress max={now.of || 1} value={now.done} aria-label={t("bench.progress")} /><span class="num">{whole(now.done)} / {whole(now.of)}</span>
          <button type="button" onClick={() => now.stop.abort()}>{t("chat.stop")}</button></div>
          : <button type="submit" class="primary" disabled={!p.methods.length || p.methods.length + Number(p.control) < 2}>{t("bench.run")}</button>}
      </form>
    </Card>
  );
}

export function BenchView() {
  const r = useStore(result), why = useStore(problem), list = usePolled<{ data: { ts: number; result: Result }[] }>("/api/bench", 0);
  if (list.denied) return <div class="grid"><Empty title={t("admin_only")} /></div>;
  return (
    <div class="grid bench">
      <div class="stack">
      <Form done={list.again} />
      <Card title={t("bench.history")} note={t("bench.history_note")}>
        {list.data?.data.length ? <ul class="history">{list.data.data.map((x) => (
          <li key={x.result.id}><button type="button" class="quiet" aria-pressed={r?.id === x.result.id} onClick={() => result.set(x.result)}>
            <time>{date(x.ts * 1e3)}</time> <span>{x.result.cells.map((c) => word(`method.${c.method}`, c.method)).filter((m, i, l) => l.indexOf(m) === i).join(", ")}</span></button></li>))}</ul>
          : <Empty title={t("bench.no_history")} />}
      </Card>
      </div>
      <div class="stack wide2">
        {why && <Problem text={why} />}
        {r ? <Shown r={r} /> : <Card title={t("bench.result")}><Empty title={t("bench.none")} /></Card>}
      </div>
    </div>
  );
}
