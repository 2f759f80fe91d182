// Numbers as people read them.
export const NONE = "–";

const parse = (value: number | string | null | undefined): number | null =>
  typeof value === "string" ? Number(value.replace("inf", "Infinity")) : value ?? null;

function formatNonfinite(value: number): string {
  return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
}

const group = (text: string) => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

export function formatLoss(given: number | string | null | undefined): string {
  const value = parse(given);
  if (value === null) return NONE;
  return Number.isFinite(value) ? value.toFixed(4) : formatNonfinite(value);
}

export function formatExponent(given: number | null | undefined): string {
  const value = parse(given);
  if (value === null) return NONE;
  if (!Number.isFinite(value)) return formatNonfinite(value);
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(1).split("e");
  return `${mantissa}e${Number(power)}`;
}

export function formatWhole(given: number | null | undefined): string {
  const value = parse(given);
  if (value === null) return NONE;
  return Number.isFinite(value) ? group(value.toFixed(0)) : formatNonfinite(value);
}

export function formatCount(given: number | null | undefined): string {
  const value = parse(given);
  if (value === null) return NONE;
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]] as const) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return formatWhole(value);
}

export function formatBytes(given: number | null | undefined): string {
  const value = parse(given);
  if (value === null) return NONE;
  if (value < 0) return `−${formatBytes(-value)}`;
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]] as const) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

export const formatSpeed = (value: number | null | undefined) =>
  value === null || value === undefined ? NONE : `${formatWhole(value)} tok/s`;

export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return NONE;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return whole % 60 && minutes < 10 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${Math.floor(hours / 24)} d`;
}

/** A metric by its name: losses with 4 decimals, rates as powers, others with 4 digits. */
export function formatMetric(name: string, given: number | string | null | undefined): string {
  const value = parse(given);
  if (value === null) return NONE;
  if (!Number.isFinite(value)) return formatNonfinite(value);
  if (name === "loss" || name.endsWith("/loss") || name === "validation") return formatLoss(value);
  if (name === "lr") return formatExponent(value);
  if (name === "tps" || name === "tokens_seen") return formatWhole(value);
  return formatFigure(value);
}

/** Four significant digits, as a power of ten where it is very small or large. */
export function formatFigure(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return formatExponent(value);
  const text = Number(value.toPrecision(4)).toString();
  const [whole = "", rest] = text.split(".");
  return rest ? `${group(whole)}.${rest}` : group(whole);
}

/** The numbers of an axis, all with the same number of decimals or all as powers. */
export function formatTicks(values: number[]): string[] {
  if (values.some((value) => value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7))) return values.map(formatExponent);
  const exact = values.map((value) => Number(value.toPrecision(12)).toString());
  const decimals = Math.max(0, ...exact.map((text) => text.split(".")[1]?.length ?? 0));
  return values.map((value) => {
    const [whole = "", rest] = value.toFixed(value === 0 ? 0 : decimals).split(".");
    return rest ? `${group(whole)}.${rest}` : group(whole);
  });
}

export const METRIC_UNITS: Record<string, string> = {
  tps: "tok/s", tflops: "TFLOP/s", mfu: "%", memory_gib: "GiB", "time/step_seconds": "s", "time/data_seconds": "s",
};
const METRIC_TITLES: Record<string, string> = {
  loss: "Loss", "validation/loss": "Validation loss", grad_norm: "Gradient norm", lr: "Learning rate", tps: "Tokens per second",
  tflops: "Compute", mfu: "Model FLOPs utilization", memory_gib: "Memory", "time/step_seconds": "Time per step",
  "time/data_seconds": "Time for data", "validation/accuracy": "Validation accuracy", "validation/reward_mean": "Validation reward",
  "rollout/reward_mean": "Reward",
};
/** Whether a metric has no noise of single steps: a schedule, or already a mean over a dataset. */
export const isExact = (name: string) => name === "lr" || name.startsWith("validation/");

export const formatMetricTitle = (name: string) => METRIC_TITLES[name] ?? name;

export function formatDate(iso: string | null | undefined): string {
  if (!iso) return NONE;
  const date = new Date(iso);
  const pad = (value: number) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}`;
}

export function formatValue(value: unknown): string {
  if (value === null) return "null";
  if (typeof value === "string") return value === "" ? '""' : value;
  return JSON.stringify(value);
}

/** A cell of the table that compares runs. Settings stand there as they are written, whatever their names. */
export function formatComparison(group: string, name: string, value: unknown): string {
  if (value === null || value === undefined) return NONE;
  if (typeof value !== "number") return formatValue(value);
  if (group !== "outcome") return String(value);
  if (name.includes("loss")) return formatLoss(value);
  if (name === "seconds") return formatDuration(value);
  return name === "tokens/s" ? formatSpeed(value) : String(value);
}
