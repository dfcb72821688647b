// A value with subscribers, and a hook that renders again when it changes.
import { useEffect, useState } from "preact/hooks";

export interface Store<T> {
  get(): T;
  set(value: T): void;
  update(change: (value: T) => T): void;
  subscribe(call: () => void): () => void;
}

export function store<T>(value: T): Store<T> {
  const calls = new Set<() => void>();
  const set = (next: T) => {
    if (Object.is(next, value)) return;
    value = next;
    for (const call of [...calls]) call();
  };
  return {
    get: () => value,
    set,
    update: (change) => set(change(value)),
    subscribe(call) {
      calls.add(call);
      return () => calls.delete(call);
    },
  };
}

export function useStore<T>(of: Store<T>): T {
  const [, render] = useState(0), value = of.get();
  useEffect(() => {
    const again = () => render((n) => n + 1);
    if (!Object.is(of.get(), value)) again(); // it changed between the rendering and now
    return of.subscribe(again);
  }, [of]);
  return value;
}

// A store that is kept in localStorage; a browser that refuses storage keeps it in memory only. `less` returns a smaller value that is
// kept where there is no room for the whole one.
export function savedStore<T>(name: string, initial: T, read: (x: unknown) => T | undefined, less?: (value: T) => T): Store<T> {
  let start = initial;
  try {
    const text = localStorage.getItem(name);
    if (text !== null) start = read(JSON.parse(text)) ?? initial;
  } catch {
    // unreadable: the initial value
  }
  const s = store(start);
  const save = (value: T): boolean => {
    try {
      localStorage.setItem(name, JSON.stringify(value));
      return true;
    } catch {
      return false; // no room, or not allowed
    }
  };
  let timer = 0; // a text that grows is not written with every token
  const saveNow = () => {
    clearTimeout(timer);
    timer = 0;
    if (!save(s.get()) && less) save(less(s.get()));
  };
  s.subscribe(() => (timer ||= window.setTimeout(saveNow, 300)));
  addEventListener("pagehide", () => timer && saveNow());
  return s;
}
