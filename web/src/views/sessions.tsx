// Sessions: conversations whose state is saved to files.
import { useState } from "preact/hooks";
import { errorText, sendJson } from "../api";
import { bytes, date, t, whole } from "../i18n";
import { Card, Empty, Problem } from "../parts";
import { usePolled } from "../poll";
import { visible } from "../text";

interface Session {
  name: string;
  tokens: number;
  bytes: number;
  draft: string;
  used: string; // as 2026-01-01T00:00:00Z
}

export function SessionsView() {
  const list = usePolled<{ sessions: Session[] }>("/api/sessions", 5000), [name, setName] = useState(""), [problem, setProblem] = useState(""), [said, setSaid] = useState("");
  const act = async (n: string, what: "save" | "restore" | "delete") => {
    setProblem("");
    setSaid("");
    try {
      const r = await sendJson<{ reusable?: number; ms?: number }>("POST", `/api/sessions/${encodeURIComponent(n)}/${what}`, {});
      setSaid(t(`sessions.${what}d` as "sessions.saved", { name: n, n: whole(r.reusable ?? 0), ms: whole(r.ms ?? 0) }));
    } catch (e) {
      setProblem(errorText(e));
    }
    list.again();
  };
  return (
    <div class="grid">
      <Card title={t("sessions.save_title")}>
        <p>{t("sessions.text")}</p>
        <form class="row" onSubmit={(e) => (e.preventDefault(), act(name, "save"))}>
          <label class="grow"><span class="hidden">{t("sessions.name")}</span>
            <input required maxLength={64} pattern="[A-Za-z0-9_\-][A-Za-z0-9._\-]*" placeholder={t("sessions.name")} value={name} onInput={(e) => setName(e.currentTarget.value)} /></label>
          <button type="submit" class="primary">{t("sessions.save")}</button>
        </form>
        {problem && <Problem text={problem} />}
        <p role="status" class="good">{said}</p>
      </Card>
      <Card title={t("sessions.title")} class="wide2">
        {list.problem && <Problem text={list.problem} onRetry={list.again} />}
        {list.data?.sessions.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label={t("sessions.title")}><table>
            <thead><tr><th>{t("sessions.name")}</th><th class="num">{t("sessions.tokens")}</th><th class="num">{t("sessions.size")}</th><th>{t("sessions.used")}</th><th><span class="hidden">{t("sessions.actions")}</span></th></tr></thead>
            <tbody>{list.data.sessions.map((s) => (
              <tr key={s.name}><td><bdi>{visible(s.name)}</bdi></td><td class="num">{whole(s.tokens)}</td><td class="num">{bytes(s.bytes)}</td><td>{date(Date.parse(s.used))}</td>
                <td class="row"><button type="button" onClick={() => act(s.name, "restore")}>{t("sessions.restore")}</button>
                  <button type="button" class="quiet" onClick={() => act(s.name, "delete")}>{t("delete")}</button></td></tr>))}
            </tbody></table></div>
        ) : <Empty title={t("sessions.none")} />}
      </Card>
    </div>
  );
}
