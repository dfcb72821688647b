// Builds the dashboard to web/dist, and writes the list of its files for the server: src/server/web/files.inc.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig } from "vite";

const out = join(import.meta.dirname, "dist");
function listFiles() {
  const lines = readdirSync(out).sort().map((name) => {
    const etag = createHash("sha256").update(readFileSync(join(out, name))).digest("hex").slice(0, 16);
    return `UI_FILE(ui_${name.split(/[-.]/)[0]}_${name.split(".").pop()}, "${name}", "${etag}")\n`;
  });
  writeFileSync(join(import.meta.dirname, "../src/server/web/files.inc"), `/* Written by \`npm run build\` in web/. */\n${lines.join("")}`);
}

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
  plugins: [{ name: "list-files", closeBundle: listFiles }],
});
