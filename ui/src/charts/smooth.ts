// Smoothing as TensorBoard draws it: an exponential moving average without the bias of its start.
export function smooth(values: (number | null)[], weight: number): (number | null)[] {
  let average = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return value;
    average = weight * average + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return average / share;
  });
}

/** Mean, lowest and highest value of several curves at the positions that all of them have. */
export function spread(curves: { x: number[]; y: (number | null)[] }[]) {
  const maps = curves.map((curve) => new Map(curve.x.map((x, at) => [x, curve.y[at]])));
  const x = (curves[0]?.x ?? []).filter((at) => maps.every((map) => typeof map.get(at) === "number"));
  const columns = x.map((at) => maps.map((map) => map.get(at) as number));
  return {
    x,
    mean: columns.map((column) => column.reduce((sum, value) => sum + value, 0) / column.length),
    low: columns.map((column) => Math.min(...column)),
    high: columns.map((column) => Math.max(...column)),
  };
}

/** The range that holds all but the outermost values, with a margin. */
export function clipRange(values: number[], share = 0.02): [number, number] | null {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (sorted.length < 20) return null;
  const low = sorted[Math.floor(sorted.length * share)]!;
  const high = sorted[Math.ceil(sorted.length * (1 - share)) - 1]!;
  const margin = (high - low) * 0.08 || Math.abs(high) * 0.08 || 1;
  return [low - margin, high + margin];
}
