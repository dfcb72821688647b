// A uPlot chart that follows the theme, the width of its box and its data.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { language, number, time as clock } from "./i18n";
import { theme } from "./theme";
import { useStore } from "./store";

export interface Line {
  name: string;
  color: string; // a custom property of the style sheet, such as "--ink"
  points?: boolean; // points only
  fill?: boolean;
}
export interface ChartProps {
  label: string;
  lines: Line[];
  data: () => uPlot.AlignedData;
  version: unknown; // the data is read again when it changes
  height?: number;
  time?: boolean;
  span?: () => [number, number]; // of x
  unit?: string;
  xUnit?: string;
  mark?: number | null; // an x at which a line is drawn
  markText?: string | undefined;
}

const colorOf = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";

function drawMark(u: uPlot, mark: () => { x: number | null | undefined; text: string | undefined }): void {
  const { x, text } = mark();
  if (x === null || x === undefined) return;
  const at = u.valToPos(x, "x", true), c = u.ctx;
  c.save();
  c.strokeStyle = c.fillStyle = colorOf("--mark");
  c.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  c.lineWidth = devicePixelRatio;
  c.beginPath();
  c.moveTo(at, u.bbox.top);
  c.lineTo(at, u.bbox.top + u.bbox.height);
  c.stroke();
  if (text) {
    const right = at + 90 * devicePixelRatio < u.bbox.left + u.bbox.width;
    c.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    c.textAlign = right ? "left" : "right";
    c.fillText(text, at + (right ? 6 : -6) * devicePixelRatio, u.bbox.top + 14 * devicePixelRatio);
  }
  c.restore();
}

function optionsOf(p: ChartProps, width: number, mark: () => { x: number | null | undefined; text: string | undefined }): uPlot.Options {
  const ink = colorOf("--quiet"), grid = colorOf("--line");
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif" };
  const scale = p.span ? { x: { time: !!p.time, range: () => p.span!() } } : { x: { time: !!p.time } };
  return {
    width,
    height: p.height ?? 180,
    padding: [8, 28, 0, 0],
    cursor: { y: false },
    legend: { show: p.lines.length > 1, live: false },
    scales: { ...scale, y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      { ...axis, size: 34, ...(p.time ? { space: 90, values: (_u: uPlot, v: number[]) => v.map((x) => clock(x * 1e3)) } : { values: (_u: uPlot, v: number[]) => v.map((x) => number(x).replace(/[.,]0+$/, "") + (p.xUnit ?? "")) }) },
      { ...axis, size: 72, values: (_u, v) => v.map((x) => number(x) + (p.unit ?? "")) },
    ],
    series: [
      {},
      ...p.lines.map((l): uPlot.Series => ({
        label: l.name,
        stroke: colorOf(l.color),
        width: l.points ? 0 : 2,
        spanGaps: true,
        points: l.points ? { show: true, size: 6, fill: colorOf(l.color) } : { show: false },
        ...(l.fill ? { fill: colorOf(l.color) + "22" } : {}),
      })),
    ],
    hooks: { draw: [(u) => drawMark(u, mark)] },
  };
}

export function Chart(props: ChartProps) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null), last = useRef(props);
  last.current = props;
  const look = useStore(theme), lang = useStore(language);
  useEffect(() => {
    const where = box.current!;
    const make = () => {
      plot.current?.destroy();
      const o = optionsOf(last.current, Math.max(where.clientWidth, 100), () => ({ x: last.current.mark, text: last.current.markText }));
      plot.current = new uPlot(o, last.current.data(), where);
    };
    make();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(where.clientWidth, 100), height: last.current.height ?? 180 }));
    size.observe(where);
    return () => {
      size.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [look, lang, props.lines.map((l) => l.name + l.color).join()]);
  useEffect(() => plot.current?.setData(props.data()), [props.version]);
  return <div class="chart" ref={box} role="img" aria-label={props.label} style={{ minHeight: `${(props.height ?? 180) + (props.lines.length > 1 ? 30 : 0)}px` }} />;
}
