// What the comparisons of tokenizers share: the vocabulary of a package, a directory for files, and the output of programs.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

// Returns the path of a package's tokenizer.json. Ends the process if it is not installed, with an error in CI.
export function vocabularyOf(packageName) {
  const path = join(import.meta.dirname, "../node_modules", packageName, "models/tokenizer.json");
  if (existsSync(path)) return path;
  console.log(`SKIP: no ${path}; run: npm --prefix tests ci`);
  process.exit(process.env.CI === "true" ? 1 : 0);
}

// Returns a new directory, which is removed when the process ends.
export function temporaryDirectory() {
  const dir = mkdtempSync(join(tmpdir(), "tokenizer-"));
  process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

// Returns what a program writes, as bytes.
export function output(program, args, input) {
  return new Promise((done, fail) => {
    const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] }), chunks = [];
    child.stdout.on("data", (d) => chunks.push(d));
    child.on("error", fail);
    child.on("close", (code) => (code ? fail(new Error(`${program} ${args.join(" ")} ended with ${code}`)) : done(Buffer.concat(chunks))));
    child.stdin.on("error", () => {}); // it ended early: its exit code says why
    child.stdin.end(input);
  });
}

export const linesOf = (bytes) => bytes.toString().split("\n").slice(0, -1);
