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
  const [, render] = useState(0);
  useEffect(() => of.subscribe(() => render((n) => n + 1)), [of]);
  return of.get();
}

// A store that is kept in localStorage; a browser that refuses storage keeps it in memory only.
export function savedStore<T>(name: string, initial: T, read: (x: unknown) => T | undefined): Store<T> {
  let start = initial;
  try {
    const text = localStorage.getItem(name);
    if (text !== null) start = read(JSON.parse(text)) ?? initial;
  } catch {
    // unreadable: the initial value
  }
  const s = store(start);
  s.subscribe(() => {
    try {
      localStorage.setItem(name, JSON.stringify(s.get()));
    } catch {
      // no room, or not allowed
    }
  });
  return s;
}
