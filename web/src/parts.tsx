// Small parts that the views share.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { t, word } from "./i18n";
import { visible } from "./text";

export function Card(props: { title: string; note?: string | undefined; class?: string; actions?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      <header class="card-head">
        <h2>{props.title}</h2>
        {props.note && <span class="note">{props.note}</span>}
        {props.actions && <div class="actions">{props.actions}</div>}
      </header>
      {props.children}
    </section>
  );
}

export function Figure(props: { label: string; value: string; unit?: string; sub?: string | undefined; class?: string }) {
  return (
    <div class={`figure ${props.class ?? ""}`}>
      <span class="label">{props.label}</span>
      <span class="value">{props.value}{props.unit && <small> {props.unit}</small>}</span>
      <span class="sub">{props.sub ?? "\u00a0"}</span>
    </div>
  );
}

export const Empty = (props: { title: string; children?: ComponentChildren }) => (
  <div class="empty"><p>{props.title}</p>{props.children}</div>
);

export const Problem = (props: { text: string; onRetry?: () => void }) => (
  <div class="problem" role="alert">
    <span>{visible(props.text)}</span>
    {props.onRetry && <button type="button" onClick={props.onRetry}>{t("retry")}</button>}
  </div>
);

export function Copy(props: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(props.text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      setDone(false);
    }
  };
  return <button type="button" class="quiet" onClick={copy}>{done ? t("copied") : props.label ?? t("copy")}</button>;
}

export const Code = (props: { text: string }) => (
  <div class="code"><pre tabIndex={0}><code>{props.text}</code></pre><Copy text={props.text} /></div>
);

export const Method = (props: { name: string }) => (
  <span class={`method m-${props.name}`}>{word(`method.${props.name}`, visible(props.name))}</span>
);

// A bar of shares of a whole, with a legend.
export function Shares(props: { whole: number; parts: { name: string; value: number; class: string; text: string }[]; label: string }) {
  const text = props.parts.map((p) => `${p.name} ${p.text}`).join(", ");
  return (
    <div class="shares">
      <div class="bar" role="img" aria-label={`${props.label}: ${text}`}>
        {props.parts.map((p) => (
          <i key={p.name} class={p.class} style={{ width: `${props.whole ? Math.min(100, (p.value / props.whole) * 100) : 0}%` }} />
        ))}
      </div>
      <ul class="legend">
        {props.parts.map((p) => <li key={p.name}><i class={p.class} />{p.name} <b>{p.text}</b></li>)}
      </ul>
    </div>
  );
}

// Columns from 0 to 1, with the share that is filled.
export function Columns(props: { label: string; values: { name: string; share: number; title: string; class?: string }[] }) {
  return (
    <div class="columns" role="img" aria-label={`${props.label}: ${props.values.map((v) => v.title).join("; ")}`}>
      {props.values.map((v) => (
        <div key={v.name} class="column" title={v.title}>
          <div class="well"><i class={v.class ?? ""} style={{ height: `${Math.max(v.share * 100, v.share > 0 ? 2 : 0)}%` }} /></div>
          <span>{v.name}</span>
        </div>
      ))}
    </div>
  );
}

export function Dialog(props: { title: string; onClose?: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const d = box.current!;
    if (!d.open) d.showModal();
    return () => d.close();
  }, []);
  return (
    <dialog ref={box} aria-labelledby="dialog-title" onCancel={(e) => (props.onClose ? props.onClose() : e.preventDefault())}>
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}
