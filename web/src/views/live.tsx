// Live: what the engine does now.
import { useEffect } from "preact/hooks";
import { Chart } from "../chart";
import { bytes, number, percent, seconds, t, whole, word, type WordKey } from "../i18n";
import { connection, history, HISTORY_S, own, quantile, stats, type Gpu, type Histogram, type KvClass, type OwnStats, type Slot, type Stats } from "../live";
import { Card, Columns, Empty, Figure, Method, Shares } from "../parts";
import { useStore } from "../store";
import { shortId, visible } from "../text";

const span = (): [number, number] => {
  const now = history.at(-1)?.at ?? Date.now() / 1e3;
  return [Math.min(now - 60, Math.max(history[0]?.at ?? now, now - HISTORY_S)), now];
};

// Watts, degrees and load, as far as the driver reports them.
const gpuFacts = (g: Gpu) => [g.temperature_c !== null && `${whole(g.temperature_c)} °C`, g.power_w !== null && `${whole(g.power_w)} W`,
  g.utilisation !== null && percent(g.utilisation)].filter(Boolean).join(" · ");

function Figures({ s }: { s: Stats }) {
  const last = history.at(-1), host = s.process.host_bytes;
  return (
    <div class="figures">
      <Figure class="big" label={t("live.rate")} value={number(s.rates.completion_tokens_per_s)} unit={t("tokens_per_s")}
        sub={t("live.prompt_rate", { n: number(s.rates.prompt_tokens_per_s) })} />
      <Figure label={t("live.running")} value={whole(s.requests.running)} sub={t("live.queued", { n: whole(s.requests.queued) })} />
      <Figure label={t("live.acceptance")} value={last?.acceptance == null ? "–" : percent(last.acceptance)}
        sub={s.speculation.rounds ? t("live.accept_length", { n: number(s.speculation.acceptance_length) }) : undefined} />
      <Figure label={t("live.step")} value={last?.step_ms == null ? "–" : seconds(last.step_ms / 1e3)}
        sub={t("live.rows", { n: number(s.rates.rows_per_step) })} />
      <Figure label={t("live.memory")} value={bytes(s.process.resident_bytes)} sub={host > 0 ? t("live.host", { used: bytes(host - s.process.host_available_bytes), all: bytes(host) }) : t("live.uptime", { t: seconds(s.process.uptime_s) })} />
      {s.gpus.map((g, i) => <Figure key={i} class="gpu" label={visible(g.name)} sub={gpuFacts(g)}
        value={g.memory_used_bytes === null || g.memory_bytes === null ? "–" : t("live.gpu_memory", { used: bytes(g.memory_used_bytes), all: bytes(g.memory_bytes) })} />)}
    </div>
  );
}

// The last rounds of a lane, the newest at the right: a column for each, filled as far as the draft was accepted.
function Strip({ slot }: { slot: Slot }) {
  const W = 9, H = 34, MAX = 16, rounds = slot.last_rounds;
  const y = (n: number) => (Math.min(n, MAX) / MAX) * (H - 6);
  const drafted = rounds.reduce((a, r) => a + r[1], 0), accepted = rounds.reduce((a, r) => a + r[2], 0);
  return (
    <svg class="strip" viewBox={`0 0 ${32 * W} ${H}`} preserveAspectRatio="xMinYMid meet" role="img" aria-label={t("live.strip", { drafted: whole(drafted), accepted: whole(accepted) })}>
      {rounds.map(([method, d, a], i) => {
        const x = i * W;
        return (
          <g key={slot.rounds - rounds.length + i} class={`m-${method}`}>
            <rect class="own" x={x} y={H - 4} width={W - 2} height={4} />
            {d > 0 && <rect class="rejected" x={x + 0.5} y={H - 5.5 - y(d)} width={W - 3} height={y(d)} />}
            {a > 0 && <rect class="accepted" x={x} y={H - 5 - y(a)} width={W - 2} height={y(a)} />}
          </g>
        );
      })}
    </svg>
  );
}

function Lane({ slot }: { slot: Slot }) {
  const last = slot.last_rounds.at(-1), decoding = slot.phase === "decode";
  const rate = decoding && slot.decode_s > 0 ? (slot.tokens - 1) / slot.decode_s : 0;
  const share = slot.prompt_tokens ? slot.prompt_done / slot.prompt_tokens : 0;
  return (
    <li class="lane">
      <span class="id" title={visible(slot.request_id)}><bdi>{visible(shortId(slot.request_id))}</bdi></span>
      <span class="phase">{t(`phase.${slot.phase}`)}</span>
      <span class="how">{last && last[1] ? <><Method name={last[0]} /> <span class="quiet">×{last[1]}</span></> : decoding ? <Method name="off" /> : null}</span>
      {decoding ? <Strip slot={slot} /> : <div class="bar strip" role="img" aria-label={percent(share)}><i class="u-prompt" style={{ width: `${share * 100}%` }} /></div>}
      <span class="num">{decoding ? t("live.lane_tokens", { n: whole(slot.tokens) }) : `${whole(slot.prompt_done)} / ${whole(slot.prompt_tokens)}`}</span>
      <span class="num">{decoding ? `${number(Math.max(rate, 0))} ${t("tokens_per_s")}` : seconds(slot.age_s)}</span>
    </li>
  );
}

function Lanes({ s }: { s: Stats }) {
  return (
    <Card title={t("live.lanes")} class="wide lanes-card" note={t("live.lanes_note")}>
      {s.slots.length ? <ul class="lanes">{s.slots.map((x) => <Lane key={x.request_id + x.age_s.toFixed(0)} slot={x} />)}</ul>
        : <Empty title={t("live.no_lanes")}><a class="button" href="#/chat">{t("live.try_chat")}</a></Empty>}
    </Card>
  );
}

const className = (c: KvClass) => (c.kind === "sliding" ? t("kv.class.sliding", { n: whole(c.window) }) : t(`kv.class.${c.kind}`));

// What the classes have taken of the pool, in use and only cached.
function Classes({ all, pool }: { all: KvClass[]; pool: number }) {
  return (
    <table class="classes">
      <thead><tr><th>{t("kv.by_class")}</th><th class="num">{t("kv.pinned")}</th><th class="num">{t("kv.reserved")}</th><th class="num">{t("kv.cached")}</th><th class="num">{t("share")}</th></tr></thead>
      <tbody>{all.map((c, i) => (
        <tr key={i}><td>{className(c)}</td><td class="num">{bytes(c.pinned_bytes)}</td><td class="num">{bytes(c.reserved_bytes)}</td>
          <td class="num">{bytes(Math.max(c.used_bytes - c.pinned_bytes, 0))}</td><td class="num">{percent(pool ? c.held_bytes / pool : 0)}</td></tr>))}
      </tbody>
    </table>
  );
}

function Pool({ s }: { s: Stats }) {
  const k = s.kv, reserved = Math.max(k.reserved_bytes - k.pinned_bytes, 0), cached = Math.min(k.cached_bytes, k.bytes - k.pinned_bytes);
  const free = Math.max(k.bytes - k.pinned_bytes - reserved - cached, 0), lookups = k.prefix_hits + k.prefix_misses;
  return (
    <Card title={t("live.kv")} note={bytes(k.bytes)} class="wide2 pool">
      <Shares whole={k.bytes} label={t("live.kv")} parts={[
        { name: t("kv.pinned"), value: k.pinned_bytes, class: "u-pinned", text: bytes(k.pinned_bytes) },
        { name: t("kv.reserved"), value: reserved, class: "u-reserved", text: bytes(reserved) },
        { name: t("kv.cached"), value: cached, class: "u-cached", text: bytes(k.cached_bytes) },
        { name: t("kv.free"), value: free, class: "u-free", text: bytes(free) },
      ]} />
      <dl class="facts">
        <dt>{t("kv.hits")}</dt><dd>{lookups ? percent(k.prefix_hits / lookups) : "–"}</dd>
        <dt>{t("kv.evicted")}</dt><dd>{whole(k.prefix_evicted)}</dd>
        <dt>{t("kv.stored")}</dt><dd>{bytes(k.stored_bytes)}</dd>
        <dt>{t("kv.parked")}</dt><dd>{bytes(k.parked_bytes)}</dd>
      </dl>
      {k.classes.length > 0 && <div class="scroll" tabIndex={0} role="region" aria-label={t("kv.by_class")}><Classes all={k.classes} pool={k.bytes} /></div>}
    </Card>
  );
}

function Methods({ s }: { s: Stats }) {
  const used = Object.entries(s.speculation.methods).filter(([, m]) => m.rounds > 0);
  const n = s.speculation.drafted_by_position.length;
  return (
    <>
      <Card title={t("live.by_method")}>
        {used.length ? (
          <table>
            <thead><tr><th>{t("method")}</th><th class="num">{t("rounds")}</th><th class="num">{t("drafted")}</th><th class="num">{t("accepted")}</th><th class="num">{t("share")}</th></tr></thead>
            <tbody>{used.map(([name, m]) => (
              <tr key={name}><td><Method name={name} /></td><td class="num">{whole(m.rounds)}</td><td class="num">{whole(m.drafted)}</td>
                <td class="num">{whole(m.accepted)}</td><td class="num">{percent(m.acceptance_rate)}</td></tr>))}
            </tbody>
          </table>
        ) : <Empty title={t("live.no_drafts")} />}
      </Card>
      <Card title={t("live.by_position")} note={t("live.by_position_note")}>
        {n ? <Columns label={t("live.by_position")} values={s.speculation.drafted_by_position.slice(0, 16).map((tried, i) => {
          const right = s.speculation.accepted_by_position[i]!, share = tried ? right / tried : 0;
          return { name: String(i + 1), share, class: "u-accepted", title: `${i + 1}: ${percent(share)}` };
        })} /> : <Empty title={t("live.no_drafts")} />}
      </Card>
    </>
  );
}

export function Latency({ name, h }: { name: string; h: Histogram }) {
  const all = h.counts.reduce((a, b) => a + b, 0), most = Math.max(...h.counts, 1);
  const first = h.counts.findIndex((n) => n > 0), last = h.counts.findLastIndex((n) => n > 0);
  const show = (q: number) => {
    const x = quantile(h, q);
    return x === null ? "–" : seconds(x);
  };
  return (
    <Card title={t(`latency.${name}` as WordKey)} class={`latency-${name}`} note={all ? t("latency.count", { n: whole(all) }) : undefined}>
      {all ? (
        <>
          <dl class="quantiles"><dt>p50</dt><dd>{show(0.5)}</dd><dt>p95</dt><dd>{show(0.95)}</dd><dt>p99</dt><dd>{show(0.99)}</dd></dl>
          <Columns label={t(`latency.${name}` as WordKey)} values={h.counts.slice(first, last + 1).map((n, i) => {
            const bound = h.bounds_s[first + i];
            const text = bound === undefined ? `> ${seconds(h.bounds_s.at(-1)!)}` : `≤ ${seconds(bound)}`;
            return { name: text.replace("≤ ", ""), share: n / most, title: `${text}: ${whole(n)}` };
          })} />
        </>
      ) : <Empty title={t("latency.none")} />}
    </Card>
  );
}

function stepHistogram(buckets: number[]): Histogram {
  return { bounds_s: buckets.slice(0, -1).map((_, i) => (2 ** i / 8) * 1e-3), counts: buckets };
}

function Server({ s }: { s: Stats }) {
  return (
    <div class="grid">
      <Figures s={s} />
      <Card title={t("live.rate")} class="wide" note={t("live.last", { n: whole(HISTORY_S / 60) })}>
        <Chart label={t("live.rate")} version={s.ts} time span={span} height={190}
          lines={[{ name: t("live.decode"), color: "--mark", fill: true }, { name: t("live.prefill"), color: "--amber" }]}
          data={() => [history.map((x) => x.at), history.map((x) => x.completion), history.map((x) => x.prompt)]} />
      </Card>
      <Lanes s={s} />
      <Pool s={s} />
      <Card title={t("live.requests")}>
        <Chart label={t("live.requests")} version={s.ts} time span={span} height={170}
          lines={[{ name: t("live.requests_running"), color: "--mark", fill: true }, { name: t("live.requests_queued"), color: "--amber" }]}
          data={() => [history.map((x) => x.at), history.map((x) => x.running), history.map((x) => x.queued)]} />
      </Card>
      <Methods s={s} />
      <Card title={t("live.step_chart")}>
        <Chart label={t("live.step_chart")} version={s.ts} time span={span} height={170} unit=" ms" lines={[{ name: t("live.step"), color: "--tree" }]}
          data={() => [history.map((x) => x.at), history.map((x) => x.step_ms)]} />
      </Card>
      <Latency name="first_token" h={s.latency.first_token!} />
      <Latency name="between_tokens" h={s.latency.between_tokens!} />
      <Latency name="step" h={stepHistogram(s.steps.buckets)} />
      <Card title={t("live.routes")} note={t("live.routes_note")} actions={<a href="#/why">{t("nav.why")}</a>}>
        <Routes routes={s.speculation.routes} />
      </Card>
    </div>
  );
}

function Routes({ routes }: { routes: Record<string, number> }) {
  const used = Object.entries(routes).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]), all = used.reduce((a, [, n]) => a + n, 0);
  if (!all) return <Empty title={t("live.no_drafts")} />;
  return (
    <table><tbody>{used.map(([name, n]) => (
      <tr key={name}><td>{word(`reason.${name}`, visible(name))}</td><td class="num">{percent(n / all)}</td></tr>))}
    </tbody></table>
  );
}

function Own({ s }: { s: OwnStats }) {
  return (
    <div class="grid">
      <div class="notice wide">{t("own.note")}</div>
      <div class="figures">
        <Figure label={t("live.running")} value={whole(s.running)} sub={t("live.queued", { n: whole(s.queued) })} />
        <Figure label={t("own.prompt")} value={whole(s.prompt)} />
        <Figure label={t("own.completion")} value={whole(s.completion)} />
        <Figure label={t("live.acceptance")} value={s.drafted ? percent(s.accepted / s.drafted) : "–"} />
      </div>
      <Latency name="first_token" h={s.latency.first_token!} />
      <Latency name="between_tokens" h={s.latency.between_tokens!} />
      <Latency name="total" h={s.latency.total!} />
    </div>
  );
}

export function LiveView() {
  const s = useStore(stats), mine = useStore(own), c = useStore(connection), shown = !!s || !!mine;
  useEffect(() => {
    if (shown) requestAnimationFrame(() => performance.mark("live")); // read by the test of the first paint
  }, [shown]);
  if (c === "own" && mine) return <Own s={mine} />;
  if (s) return <Server s={s} />;
  return <div class="grid" aria-busy="true"><Empty title={t("live.waiting")} /></div>;
}
