// Smoothing against its formula in the paper of Adam: an average divided by 1 - w^n.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { smooth, spread, clipRange } = await load("charts/smooth.ts");
const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-12 * Math.max(1, Math.abs(b)), `${a} is not ${b}`);

test("the average is a sum with weights that fall by w, divided by their sum", () => {
  const values = [3, 1, 4, 1, 5, 9, 2, 6];
  for (const weight of [0.1, 0.6, 0.99]) {
    const found = smooth(values, weight);
    values.forEach((_, n) => {
      const weights = values.slice(0, n + 1).map((_, at) => (1 - weight) * weight ** (n - at));
      const sum = weights.reduce((total, one, at) => total + one * values[at], 0);
      near(found[n], sum / (1 - weight ** (n + 1)));
    });
  }
});

test("a constant stays, and gaps stay gaps", () => {
  const found = smooth([2, null, 2, NaN, 2], 0.9);
  assert.equal(found[1], null);
  assert.ok(Number.isNaN(found[3]));
  for (const at of [0, 2, 4]) near(found[at], 2);
});

test("a band holds mean, lowest and highest where all curves have a value", () => {
  const found = spread([{ x: [1, 2, 3], y: [1, 2, null] }, { x: [1, 2, 3], y: [3, 6, 9] }]);
  assert.deepEqual(found, { x: [1, 2], mean: [2, 4], low: [1, 2], high: [3, 6] });
});

test("outliers are outside of the clipped range, the rest is inside", () => {
  const values = Array.from({ length: 100 }, (_, at) => at / 100);
  const [low, high] = clipRange([...values, 1e9, -1e9]);
  assert.ok(low < 0.05 && high > 0.95 && high < 2 && low > -1);
  assert.equal(clipRange([1, 2, 3]), null);
});
