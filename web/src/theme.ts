// Light, dark, or as the system has it.
import { savedStore } from "./store";

export type Theme = "auto" | "light" | "dark";
const isTheme = (x: unknown): x is Theme => x === "auto" || x === "light" || x === "dark";
export const theme = savedStore<Theme>("tandem.theme", "auto", (x) => (isTheme(x) ? x : undefined));

const system = matchMedia("(prefers-color-scheme: dark)");
export function applyTheme(): void {
  const dark = theme.get() === "auto" ? system.matches : theme.get() === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
