// Statistics and the plot of a benchmark's result.
export interface Cell {
  concurrency: number;
  method: string;
  answers: number;
  failed: number;
  tokens_per_s: number;
  tokens_per_s_each: number[];
  ratio: number;
  acceptance_rate: number;
  acceptance_length: number;
  ttft_s: { median: number; p95: number };
}
export interface Result {
  id: string;
  model: string;
  prompt_tokens: number;
  output_tokens: number;
  requests: number;
  repeats: number;
  complete: boolean;
  same_text: boolean;
  others: number;
  seconds: number;
  cells: Cell[];
}
export interface Ratio {
  median: number;
  low: number;
  high: number;
}

// Returns the median of the pairs' ratios and an interval for it: the order statistics that cover 95%, or all values of
// fewer than six pairs.
export function pairedRatio(values: number[], base: number[]): Ratio | null {
  const r = values.map((x, i) => x / base[i]!).filter(Number.isFinite).sort((a, b) => a - b), n = r.length;
  if (!n) return null;
  let k = 0;
  for (let tail = 0.5 ** n, term = tail; 2 * tail <= 0.05; k++) term = (term * (n - k)) / (k + 1), tail += term;
  const low = Math.max(k - 1, 0), mid = (n - 1) / 2;
  return { median: (r[Math.floor(mid)]! + r[Math.ceil(mid)]!) / 2, low: r[low]!, high: r[n - 1 - low]! };
}

export interface Arm {
  cell: Cell;
  control: boolean; // the first method once more
  ratio: Ratio | null; // null: the base itself
}
// Returns the cells with their ratios to the first method with the same number of lanes.
export function arms(r: Result): Arm[] {
  const base = new Map<number, Cell>();
  return r.cells.map((cell) => {
    const first = base.get(cell.concurrency);
    if (!first) base.set(cell.concurrency, cell);
    return { cell, control: !!first && first.method === cell.method, ratio: first ? pairedRatio(cell.tokens_per_s_each, first.tokens_per_s_each) : null };
  });
}

const escape = (s: string) => s.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

// Returns the plot as a file of its own: ratios with their intervals, a row for each arm.
export function svgOf(r: Result, name: (a: Arm) => string, title: string): string {
  const rows = arms(r).filter((a) => a.ratio), W = 720, L = 210, step = 28, H = rows.length * step + 64;
  const most = Math.max(2, ...rows.map((a) => a.ratio!.high)) * 1.05, x = (v: number) => L + (v / most) * (W - L - 70);
  const lines = rows.map((a, i) => {
    const y = 44 + i * step, q = a.ratio!;
    return `<text x="${L - 12}" y="${y + 4}" text-anchor="end">${escape(name(a))}</text>` +
      `<line x1="${x(q.low)}" x2="${x(q.high)}" y1="${y}" y2="${y}" stroke="#0b6e5f" stroke-width="2"/>` +
      `<circle cx="${x(q.median)}" cy="${y}" r="5" fill="#0b6e5f"/><text x="${x(q.high) + 10}" y="${y + 4}">${q.median.toFixed(2)}×</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${W} ${H}" font-family="system-ui, sans-serif" font-size="13" fill="#1c1f24">` +
    `<rect width="${W}" height="${H}" fill="#fbfaf7"/><text x="16" y="22" font-weight="600">${escape(title)}</text>` +
    `<line x1="${x(1)}" x2="${x(1)}" y1="30" y2="${H - 24}" stroke="#8a8578" stroke-dasharray="4 4"/>` +
    `<text x="${x(1)}" y="${H - 8}" text-anchor="middle">1×</text>${lines.join("")}</svg>\n`;
}
