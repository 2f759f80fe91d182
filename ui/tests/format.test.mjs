// Numbers as the table says that titanrun/report reads too.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load, readCases } from "./load.mjs";

const format = await load("format.ts");

for (const [name, cases] of Object.entries(readCases("tests/ui/figures.json"))) {
  test(name, () => {
    for (const [value, text] of cases) assert.deepEqual(format[name](value), text, String(value));
  });
}

test("a metric is written by its name", () => {
  assert.equal(format.formatMetric("validation/loss", 3.5), "3.5000");
  assert.equal(format.formatMetric("lr", 4.1667e-5), "4.2e-5");
  assert.equal(format.formatMetric("tps", 1966.7), "1,967");
  assert.equal(format.formatMetric("grad_norm", "nan"), "NaN");
});

test("only outcomes of runs are rounded where they are compared", () => {
  assert.equal(format.formatComparison("outcome", "loss", 2.123456), "2.1235");
  assert.equal(format.formatComparison("outcome", "seconds", 61), "1 min 1 s");
  // a setting of the loss is no loss
  assert.equal(format.formatComparison("recipe", "loss.beta", 0.00001), "0.00001");
  assert.equal(format.formatComparison("recipe", "loss", "dpo"), "dpo");
  assert.equal(format.formatComparison("recipe", "loss.beta", null), "–");
});
