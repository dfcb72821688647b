// Why: the routing decisions as they come, each in a sentence, and the measured cost of a step by its rows.
import { useState } from "preact/hooks";
import type uPlot from "uplot";
import { Chart } from "../chart";
import { number, percent, seconds, t, time, whole, word } from "../i18n";
import { stats } from "../live";
import { Card, Empty, Method, Problem } from "../parts";
import { usePolled } from "../poll";
import { useStore } from "../store";
import { shortId, visible } from "../text";

interface Option {
  method: string;
  guesses: number;
  tokens: number;
  tokens_per_s: number;
  survival: number[];
}
interface Decision {
  ts: number;
  event: "route" | "end";
  request_id: string;
  ctx_len: number;
  active_count: number;
  kv_usage_ratio: number | null;
  projected_kv_after: number | null;
  routed_to: string;
  reason: string;
  plan: { method: string; guesses: number; trial: boolean };
  costs: { plain_tokens_per_s: number | null; plan_tokens_per_s: number | null };
  choice?: { rows: number; row_s: number; options: Option[] } | null;
  outcome?: { tokens: number; drafted: number; accepted: number; acceptance: number; seconds: number; tokens_per_s: number; route_changes: number } | null;
}
interface Series {
  points: [rows: number, seconds: number, n: number][];
  curve: number[]; // from 1 row on
}
export interface Costs {
  pace: number;
  noise: number;
  steps: (Series & { max_context: number | null })[];
  drafts: Record<string, Series>;
}

// One sentence with the numbers that led to the decision.
function sentence(d: Decision): string {
  const values = { n: whole(d.plan.guesses), lanes: whole(d.active_count), ctx: whole(d.ctx_len),
    method: methodName(methodOf(d)),
    kv: d.kv_usage_ratio === null ? "–" : percent(d.kv_usage_ratio) };
  const first = word(`why.${d.reason}${d.reason === "request" && d.routed_to === "plain" ? "_off" : ""}`, d.reason)
    .replace(/\{(\w+)\}/g, (all, k: string) => (values as Record<string, string>)[k] ?? all);
  return first;
}

function rates(d: Decision): string {
  const plan = d.costs.plan_tokens_per_s, plain = d.costs.plain_tokens_per_s;
  if (d.reason === "request" && d.routed_to === "plain") return "";
  return plan && plain ? t("why.rates", { plan: number(plan), plain: number(plain), ratio: number(plan / plain) }) : t("why.unmeasured");
}

const methodName = (name: string) => word(`method.${name}`, visible(name));
const methodOf = (d: Decision) => (d.routed_to === "plain" ? "off" : d.routed_to);

// The draft that was chosen, or else the best one that was not.
function draftOf(d: Decision): Option | undefined {
  const drafts = d.choice!.options.filter((o) => o.method !== "off" && o.survival.length).sort((a, b) => b.tokens_per_s - a.tokens_per_s);
  return drafts.find((o) => o.method === d.routed_to) ?? drafts[0];
}

function Choice({ d }: { d: Decision }) {
  const c = d.choice;
  if (!c) return null;
  const o = draftOf(d), most = Math.max(...c.options.map((x) => x.tokens_per_s)), all = [...c.options].sort((a, b) => b.tokens_per_s - a.tokens_per_s);
  return (
    <>
      <p>{t("why.row", { row: seconds(c.row_s), rows: whole(c.rows) })} {o && t(o.survival.length > 1 ? "why.survival" : "why.survival_one", { method: methodName(o.method), first: percent(o.survival[0]!), n: whole(o.survival.length),
        last: percent(o.survival.at(-1)!), tokens: number(o.tokens) })}</p>
      <ul class="options" aria-label={t("why.options")}>{all.map((x) => (
        <li key={x.method} class={`m-${x.method} ${x.method === methodOf(d) ? "chosen" : ""}`}>
          <Method name={x.method} /><span class="quiet">{x.guesses > 0 && `×${whole(x.guesses)}`}</span>
          <span class="bar"><i style={{ width: `${(x.tokens_per_s / most) * 100}%` }} /></span>
          <b class="num">{number(x.tokens_per_s)}</b>
          <span class="quiet small">{x.method === methodOf(d) ? t("why.chosen") : t("why.expected", { n: number(x.tokens) })}</span>
        </li>))}</ul>
    </>
  );
}

function Row({ d, onFilter }: { d: Decision; onFilter: (id: string) => void }) {
  return (
    <li class={`decision ${d.event}`}>
      <div class="when"><time>{time(d.ts * 1e3)}</time>
        <button type="button" class="quiet id" title={t("why.only")} onClick={() => onFilter(d.request_id)}><bdi>{visible(shortId(d.request_id))}</bdi></button></div>
      <div>
        <p><Method name={methodOf(d)} /> <span class="quiet">·</span> <b>{d.event === "end" ? t("why.end") : word(`reason.${d.reason}`, visible(d.reason))}</b></p>
        {d.event === "route" ? <><p>{sentence(d)} {rates(d)}</p><Choice d={d} /></>
          : d.outcome && <p>{t("why.outcome", { tokens: whole(d.outcome.tokens), drafted: whole(d.outcome.drafted), accepted: whole(d.outcome.accepted),
            share: percent(d.outcome.acceptance), rate: number(d.outcome.tokens_per_s), changes: whole(d.outcome.route_changes) })}</p>}
        <p class="quiet small">{t("why.facts", { ctx: whole(d.ctx_len), lanes: whole(d.active_count),
          kv: d.kv_usage_ratio === null ? "–" : percent(d.kv_usage_ratio), after: d.projected_kv_after === null ? "–" : percent(d.projected_kv_after) })}</p>
      </div>
    </li>
  );
}

function joined(s: Series): uPlot.AlignedData {
  const last = Math.max(8, ...s.points.map((p) => p[0])) + 4, measured = new Map(s.points.map((p) => [p[0], p[1] * 1e3]));
  const rows = Array.from({ length: Math.min(last, s.curve.length) }, (_, i) => i + 1);
  return [rows, rows.map((r) => s.curve[r - 1]! * 1e3), rows.map((r) => measured.get(r) ?? null)];
}

function Curve({ costs }: { costs: Costs }) {
  const s = useStore(stats), measured = costs.steps.filter((x) => x.points.length), [at, setAt] = useState(0);
  const series = measured[Math.min(at, measured.length - 1)];
  if (!series) return <Empty title={t("why.no_costs")} />;
  const first = series.curve[0]!, rows = s && s.requests.running ? s.rates.rows_per_step : null;
  const nth = (n: number) => series.curve[Math.min(n, series.curve.length) - 1]!;
  return (
    <>
      {measured.length > 1 && <label class="field inline"><span>{t("why.context")}</span>
        <select value={at} onChange={(e) => setAt(Number(e.currentTarget.value))}>
          {measured.map((x, i) => <option key={i} value={i}>{x.max_context === null ? t("why.longer") : t("why.up_to", { n: whole(x.max_context) })}</option>)}</select></label>}
      <Chart label={t("why.curve")} version={costs} height={220} unit=" ms" mark={rows} markText={rows === null ? undefined : `${t("why.now")}: ${number(rows)}`}
        lines={[{ name: t("why.fitted"), color: "--mark" }, { name: t("why.measured"), color: "--amber", points: true }]} data={() => joined(series)} />
      <p>{t("why.curve_text", { one: seconds(first), eight: seconds(nth(8)), ratio: number(nth(8) / first), pace: number(costs.pace), noise: percent(costs.noise) })}</p>
    </>
  );
}

export function WhyView() {
  const [id, setId] = useState("");
  const list = usePolled<{ data: Decision[] }>(`/api/routing?n=100${id ? `&request_id=${encodeURIComponent(id)}` : ""}`, 1500);
  const costs = usePolled<Costs>("/api/costs", 3000);
  if (list.denied) return <div class="grid"><Empty title={t("admin_only")} /></div>;
  return (
    <div class="grid why">
      <Card title={t("why.decisions")} class="wide2" note={t("why.note")} actions={
        <label><span class="hidden">{t("why.filter")}</span><input type="search" placeholder={t("why.filter")} value={id} onInput={(e) => setId(e.currentTarget.value)} /></label>}>
        {list.problem && <Problem text={list.problem} onRetry={list.again} />}
        {list.data && !list.data.data.length && <Empty title={t("why.none")}><a class="button" href="#/chat">{t("live.try_chat")}</a></Empty>}
        <ol class="decisions">{list.data?.data.map((d, i) => <Row key={`${d.ts}${d.request_id}${i}`} d={d} onFilter={setId} />)}</ol>
      </Card>
      <Card title={t("why.curve")} class="side">
        {costs.problem ? <Problem text={costs.problem} onRetry={costs.again} /> : costs.data ? <Curve costs={costs.data} /> : <Empty title={t("live.waiting")} />}
      </Card>
    </div>
  );
}
