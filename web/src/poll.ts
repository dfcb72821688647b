// Reads a path again and again while a view is shown.
import { useEffect, useState } from "preact/hooks";
import { ApiError, errorText, getJson } from "./api";
import { connection } from "./live";
import { useStore } from "./store";

export interface Polled<T> {
  data: T | null;
  problem: string;
  denied: boolean; // it needs an admin key
  again: () => void;
}

export function usePolled<T>(path: string, every_ms: number): Polled<T> {
  const [data, setData] = useState<T | null>(null), [problem, setProblem] = useState(""), [denied, setDenied] = useState(false);
  const [turn, setTurn] = useState(0), c = useStore(connection);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const read = async () => {
      try {
        setData(await getJson<T>(path, stop.signal));
        setProblem("");
        setDenied(false);
      } catch (e) {
        if (stop.signal.aborted) return;
        setDenied(e instanceof ApiError && e.status === 403);
        setProblem(errorText(e));
      }
      if (every_ms && !stop.signal.aborted) timer = window.setTimeout(read, document.hidden ? every_ms * 5 : every_ms);
    };
    read();
    return () => (stop.abort(), clearTimeout(timer));
  }, [path, every_ms, turn, c === "lost" || c === "closed"]);
  return { data, problem, denied, again: () => setTurn((n) => n + 1) };
}
