// What the editor says at the end of lines about values that come from elsewhere.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { listOriginNotes } = await load("pages/origin_notes.ts");
const TEXT = "version: 1\nextends: [parts/fp32.yaml]\ntraining:\n  steps: 80\noptimizer: {lr: 0.1}\n";

test("inherited values stand at their section, or at extends", () => {
  const values = [
    { path: "training.steps", value: 80, source: "file", file: "mine.yaml", line: 4, shadowed: ["parts/fp32.yaml:3:10"] },
    { path: "training.mixed_precision_param", value: "float32", source: "file", file: "recipes/parts/fp32.yaml", line: 2 },
    { path: "checkpoint.interval", value: 5, source: "file", file: "recipes/parts/fp32.yaml", line: 4 },
    { path: "optimizer.lr", value: 1, source: "override", file: "command line", line: 1 },
    { path: "optimizer.eps", value: 1e-8, source: "default" },
  ];
  assert.deepEqual(listOriginNotes(TEXT, "mine.yaml", values), [
    { line: 4, text: "instead of fp32.yaml:3" },
    { line: 3, text: "mixed_precision_param float32 from fp32.yaml" },
    { line: 2, text: "checkpoint.interval 5 from fp32.yaml" },
  ]);
});

test("at most three, the rest is counted; TOML has its sections in brackets", () => {
  const values = ["a", "b", "c", "d", "e"].map((name, at) => ({ path: `training.${name}`, value: at, source: "file", file: "p.toml", line: at + 1 }));
  const [note] = listOriginNotes('version = 1\n[training]\nsteps = 3\n', "mine.toml", values);
  assert.deepEqual(note, { line: 2, text: "a 0 from p.toml; b 1 from p.toml; c 2 from p.toml; 2 more" });
});
