// Modules of the page as node runs them: TypeScript, bundled in memory by the esbuild of the build.
import { build } from "esbuild";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ui = join(dirname(fileURLToPath(import.meta.url)), "..");

/** A module of ui/src. It must need no document, but what `globals` stands in for. */
export async function load(name, globals = {}) {
  Object.assign(globalThis, globals);
  const built = await build({ absWorkingDir: ui, entryPoints: [`src/${name}`], bundle: true, format: "esm", write: false, preserveSymlinks: true, jsx: "automatic", jsxImportSource: "preact" });
  return import(`data:text/javascript;base64,${Buffer.from(built.outputFiles[0].contents).toString("base64")}`);
}

/** A shared table of cases, from the root of the repository. */
export const readCases = (path) => JSON.parse(readFileSync(join(ui, "..", path), "utf8"));
