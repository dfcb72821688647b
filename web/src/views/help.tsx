// Help: what this is, the first request, agents, and where models come from.
import { useState } from "preact/hooks";
import { agents } from "virtual:agents";
import { t } from "../i18n";
import { stats } from "../live";
import { Card, Code } from "../parts";
import { useStore } from "../store";

export function HelpView() {
  const s = useStore(stats), model = s?.model ?? "nano", base = location.origin, [agent, setAgent] = useState(agents[0]!.name);
  const now = agents.find((a) => a.name === agent)!;
  const fill = (text: string) => text.replaceAll("{{base}}", base).replaceAll("{{model}}", model);
  return (
    <div class="grid">
      <Card title={t("help.what")} class="wide2">
        <p>{t("help.what1")}</p><p>{t("help.what2")}</p>
        <ol class="walk">{(["help.walk1", "help.walk2", "help.walk3", "help.walk4"] as const).map((k, i) => (
          <li key={k}><a href={["#/chat", "#/chat", "#/settings", "#/why"][i]}>{t(k)}</a></li>))}</ol>
      </Card>
      <Card title={t("help.curl")}>
        <Code text={`curl ${base}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d '{"messages":[{"role":"user","content":"What is 27 plus 58?"}]}'`} />
        <p class="quiet">{t("help.key")}</p>
      </Card>
      <Card title={t("help.agents")} class="wide2">
        <p>{t("help.agents_text")}</p>
        <div class="row wrap" role="group" aria-label={t("help.agents")}>{agents.map((a) => (
          <button key={a.name} type="button" aria-pressed={a.name === agent} onClick={() => setAgent(a.name)}>{a.name}</button>))}</div>
        {now.file && <p><code>{now.file}</code></p>}
        {now.content && <Code text={fill(now.content)} />}
        <Code text={fill(now.command)} />
      </Card>
      <Card title={t("help.model")}>
        <p>{t("help.model_text")}</p>
        <Code text={"tandem serve -m ./gemma-4-E4B-it --draft ./gemma-4-E4B-it-DFlash"} />
        <p class="quiet">{t("help.model_more")}</p>
      </Card>
    </div>
  );
}
