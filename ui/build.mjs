// Builds the page into titanrun/ui/static: the same bytes from the same sources.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../titanrun/ui/static");
const sha256 = (data) => createHash("sha256").update(data).digest("hex");

function listFiles(folder) {
  return readdirSync(folder, { withFileTypes: true })
    .flatMap((entry) => {
      const path = join(folder, entry.name);
      return entry.isDirectory() ? listFiles(path) : [path];
    })
    .sort();
}

function hashSources() {
  const files = [...listFiles(join(here, "src")), join(here, "build.mjs"), join(here, "package-lock.json")];
  const parts = files.map((file) => `${relative(here, file)} ${sha256(readFileSync(file))}\n`).sort();
  return sha256(parts.join(""));
}

function collectLicenses(inputs) {
  const names = new Set();
  for (const path of Object.keys(inputs)) {
    const found = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found) names.add(found[1]);
  }
  return [...names]
    .sort()
    .map((name) => {
      const folder = join(here, "node_modules", name);
      const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      const file = readdirSync(folder).find((entry) => /^licen[sc]e/i.test(entry));
      const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
      return `${name} ${about.version} (${about.license})\n\n${text}\n`;
    })
    .join(`\n${"-".repeat(80)}\n\n`);
}

rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
const result = await build({
  absWorkingDir: here,
  entryPoints: { main: "src/main.tsx", icon: "src/icon.svg" },
  outdir: target,
  bundle: true,
  // names of chunks hold a hash of paths, also where ui/node_modules is a link to another checkout
  preserveSymlinks: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  metafile: true,
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  loader: { ".svg": "copy" },
});
writeFileSync(join(target, "licenses.txt"), collectLicenses(result.metafile.inputs));
writeFileSync(join(target, "tokens.css"), readFileSync(join(here, "src/tokens.css")));
const files = {};
for (const file of listFiles(target)) files[basename(file)] = readFileSync(file).length;
const find = (start, end) => Object.keys(files).find((name) => name.startsWith(start) && name.endsWith(end));
const manifest = {
  script: find("main-", ".js"),
  style: find("main-", ".css"),
  icon: find("icon-", ".svg"),
  digest: sha256(Object.keys(files).sort().join("\n")).slice(0, 16),
  sources: hashSources(),
  files,
};
writeFileSync(join(target, "manifest.json"), `${JSON.stringify(manifest, null, 1)}\n`);
