// Builds the dashboard to web/dist, and writes the list of its files for the server: src/server/web/files.inc. With TANDEM_UI_OUT, both
// are written there, as dist and files.inc.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig } from "vite";

const elsewhere = process.env.TANDEM_UI_OUT;
const out = join(elsewhere ?? import.meta.dirname, "dist"), list = elsewhere ? join(elsewhere, "files.inc") : join(import.meta.dirname, "../src/server/web/files.inc");
function listFiles() {
  const lines = readdirSync(out).sort().map((name) => {
    const etag = createHash("sha256").update(readFileSync(join(out, name))).digest("hex").slice(0, 16);
    return `UI_FILE(ui_${name.split(/[-.]/)[0]}_${name.split(".").pop()}, "${name}", "${etag}")\n`;
  });
  writeFileSync(list, `/* Written by \`npm run build\` in web/. */\n${lines.join("")}`);
}

// The configurations of docs/agents.md as the module "virtual:agents". {{base}} and {{model}} stand for this server's.
function readAgents() {
  const text = readFileSync(join(import.meta.dirname, "../docs/agents.md"), "utf8");
  const fill = (code) => code.replaceAll("http://127.0.0.1:8080", "{{base}}").replaceAll(/\bnano\b/g, "{{model}}");
  const agents = text.split(/^## /m).slice(1).flatMap((part) => {
    const m = /^(\S+)\n(?:`([^`]+)`\n```\w+\n([^]*?)\n```\n)?```sh\n([^]*?)\n```/.exec(part);
    return m ? [{ name: m[1], file: m[2] ?? "", content: fill(m[3] ?? ""), command: fill(m[4]) }] : [];
  });
  return `export const agents = ${JSON.stringify(agents)};`;
}
const agents = {
  name: "agents",
  resolveId: (id) => (id === "virtual:agents" ? "\0agents" : undefined),
  load: (id) => (id === "\0agents" ? readAgents() : undefined),
};

export default defineConfig({
  base: "/ui/",
  build: {
    outDir: out,
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 400,
    rollupOptions: {
      output: { entryFileNames: "app-[hash].js", chunkFileNames: "part-[hash].js", assetFileNames: "style-[hash].[ext]" },
    },
  },
  plugins: [agents, { name: "list-files", closeBundle: listFiles }],
});
