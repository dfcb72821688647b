// The shell: navigation, the state of the server, language and theme, and the question for a key.
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { call, errorText, key, needsKey } from "./api";
import { language, languages, t, word, type Language, type WordKey } from "./i18n";
import { connection, stats } from "./live";
import { Dialog, Problem } from "./parts";
import { useStore } from "./store";
import { visible } from "./text";
import { theme, type Theme } from "./theme";
import { BenchView } from "./views/bench";
import { ChatView } from "./views/chat";
import { HelpView } from "./views/help";
import { LiveView } from "./views/live";
import { SessionsView } from "./views/sessions";
import { SettingsView } from "./views/settings";
import { WhyView } from "./views/why";

const views = { live: LiveView, chat: ChatView, why: WhyView, settings: SettingsView, bench: BenchView, sessions: SessionsView, help: HelpView };
type View = keyof typeof views;
const ofAdmin: View[] = ["why", "settings", "bench"]; // not for a user's key

function viewOf(hash: string): View {
  const name = hash.replace(/^#\/?/, "").split("?")[0]!;
  return Object.hasOwn(views, name) ? (name as View) : "live";
}

function KeyDialog() {
  const [text, setText] = useState(""), [problem, setProblem] = useState("");
  const enter = async (e: Event) => {
    e.preventDefault();
    key.set(text.trim());
    try {
      await call("/v1/models");
      needsKey.set(false);
    } catch (x) {
      setProblem(errorText(x));
    }
  };
  return (
    <Dialog title={t("key.title")} {...(key.get() ? { onClose: () => needsKey.set(false) } : {})}>
      <form onSubmit={enter}>
        <p>{t("key.text")}</p>
        <label class="field"><span>{t("key.label")}</span>
          <input type="password" autocomplete="off" required value={text} onInput={(e) => setText(e.currentTarget.value)} />
        </label>
        {problem && <Problem text={problem} />}
        <div class="row"><button class="primary" type="submit">{t("key.use")}</button></div>
      </form>
    </Dialog>
  );
}

function State() {
  const s = useStore(stats), c = useStore(connection);
  const state = c === "lost" || c === "connecting" ? c : s?.draining ? "draining" : s?.state ?? "loaded";
  return (
    <p class="state" role="status">
      <i class={`dot s-${state}`} />
      <span class="model">{s ? visible(s.model) : ""}</span>
      <span class="quiet">{word(`state.${state}`, state)}</span>
    </p>
  );
}

// A view; an error in it is shown in its place.
function Shown({ view }: { view: View }) {
  const [error, reset] = useErrorBoundary((e) => console.error(e)), Current = views[view];
  useEffect(() => (error ? reset() : undefined), [view]);
  return error ? <Problem text={errorText(error)} onRetry={reset} /> : <Current />;
}

export function App() {
  useStore(language);
  const [view, setView] = useState(viewOf(location.hash)), ask = useStore(needsKey), look = useStore(theme), c = useStore(connection);
  useEffect(() => {
    const change = () => setView(viewOf(location.hash));
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  useEffect(() => {
    document.title = `${t(`nav.${view}` as WordKey)} · tandem`;
  });
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), document.getElementById("main")?.focus())}>{t("skip")}</a>
      <header class="top">
        <a class="brand" href="#/live"><img src="/favicon.svg" alt="" width="28" height="28" />tandem</a>
        <State />
        <nav aria-label={t("nav.label")}>
          {(Object.keys(views) as View[]).filter((v) => c !== "own" || !ofAdmin.includes(v)).map((v) => (
            <a key={v} href={`#/${v}`} aria-current={v === view ? "page" : undefined}>{t(`nav.${v}` as WordKey)}</a>
          ))}
        </nav>
        <div class="choices">
          {useStore(key) && <button type="button" onClick={() => needsKey.set(true)}>{t("key.change")}</button>}
          <select aria-label={t("language")} value={language.get()} onChange={(e) => language.set(e.currentTarget.value as Language)}>
            {Object.entries(languages).map(([id, l]) => <option key={id} value={id} lang={id}>{l.name}</option>)}
          </select>
          <select aria-label={t("theme")} value={look} onChange={(e) => theme.set(e.currentTarget.value as Theme)}>
            {(["auto", "light", "dark"] as const).map((x) => <option key={x} value={x}>{t(`theme.${x}`)}</option>)}
          </select>
        </div>
      </header>
      <main id="main" tabIndex={-1} class={`view-${view}`} data-connection={c}>
        <h1 class="hidden">{t(`nav.${view}` as WordKey)}</h1>
        {c === "lost" && <div class="notice" role="status">{t("lost")}</div>}
        <Shown view={view} />
      </main>
      {ask && <KeyDialog />}
    </>
  );
}
