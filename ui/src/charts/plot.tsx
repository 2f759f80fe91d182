// One chart: curves over steps, tokens or time, with the values under the pointer, and as a table.
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { formatFigure, formatMetric, formatTicks } from "../format";
import { getColor, isDark } from "../theme";
import { smooth } from "./smooth";

export interface Curve {
  id: string;
  name: string;
  color: string;
  dash?: number[];
  x: number[];
  y: (number | null)[];
  nonfinite?: number[];
  /** Drawn as it is: without noise, an average would only lag behind. */
  isExact?: boolean;
  band?: { low: number[]; high: number[] };
}

/** What happened at a step: a small tick for a save, a long one for a resume, a triangle for a spike. */
export interface Mark { x: number; kind: "save" | "resume" | "spike" }

interface Props {
  title: string;
  unit?: string;
  metric: string;
  curves: Curve[];
  xLabel?: string;
  logX?: boolean;
  logY?: boolean;
  weight?: number;
  range?: [number, number] | null;
  marks?: Mark[];
  height?: number;
}

const TABLE_ROWS = 60;
/** From this width of the drawing on, names stand at the ends of their lines. */
const WIDE = 600;
const NAME_HEIGHT = 34;
/** Distances of ticks on an axis of steps or tokens, which has no parts of them. */
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const MARK_COLORS = { save: "muted", resume: "accent", spike: "warning" };

/** Columns of one shared x, in which a curve has gaps where it has no point. */
function align(Plot: typeof uPlot, curves: Curve[], weight: number) {
  const tables: uPlot.AlignedData[] = [];
  const series: { curve: Curve; kind: "line" | "raw" | "low" | "high" }[] = [];
  for (const curve of curves) {
    const columns: (number | null)[][] = [];
    const isSmooth = weight > 0 && !curve.isExact;
    if (isSmooth) {
      series.push({ curve, kind: "raw" });
      columns.push(curve.y);
    }
    series.push({ curve, kind: "line" });
    columns.push(isSmooth ? smooth(curve.y, weight) : curve.y);
    if (curve.band) {
      series.push({ curve, kind: "low" }, { curve, kind: "high" });
      columns.push(curve.band.low, curve.band.high);
    }
    tables.push([curve.x, ...columns] as uPlot.AlignedData);
  }
  const data = tables.length > 1 ? Plot.join(tables) : tables[0] ?? ([[]] as unknown as uPlot.AlignedData);
  return { data, series };
}

function drawMarks(plot: uPlot, props: Props): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.lineWidth = 1.5 * ratio;
  for (const curve of props.curves) {
    ctx.strokeStyle = getColor(curve.color);
    for (const x of curve.nonfinite ?? []) {
      const at = plot.valToPos(x, "x", true);
      const size = 3.5 * ratio;
      const top = bbox.top + 6 * ratio;
      ctx.beginPath();
      ctx.moveTo(at - size, top - size);
      ctx.lineTo(at + size, top + size);
      ctx.moveTo(at - size, top + size);
      ctx.lineTo(at + size, top - size);
      ctx.stroke();
    }
  }
  const bottom = bbox.top + bbox.height;
  for (const { x, kind } of props.marks ?? []) {
    const at = plot.valToPos(x, "x", true);
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    const size = 4 * ratio;
    ctx.strokeStyle = ctx.fillStyle = getColor(MARK_COLORS[kind]);
    ctx.beginPath();
    ctx.moveTo(at, bottom);
    if (kind === "spike") {
      ctx.lineTo(at - size, bottom - 2 * size);
      ctx.lineTo(at + size, bottom - 2 * size);
      ctx.fill();
    } else {
      ctx.lineTo(at, bottom - (kind === "save" ? 7 : 16) * ratio);
      ctx.stroke();
    }
  }
  ctx.restore();
}

/** Where the lines end, in pixels from the top, moved apart so that every name has its place. */
function findEnds(plot: uPlot, series: ReturnType<typeof align>["series"]): number[] {
  const ratio = devicePixelRatio;
  const low = plot.bbox.top / ratio;
  const high = low + plot.bbox.height / ratio;
  const lines = series.flatMap((one, at) => (one.kind === "line" ? [(plot.data[at + 1] as (number | null)[]).findLast((value) => value != null)] : []));
  const ends = lines.map((value, at) => ({ at, top: value == null ? high : Math.min(Math.max(plot.valToPos(value, "y") + low || high, low), high) })).sort((a, b) => a.top - b.top);
  ends.forEach((one, rank) => { if (rank) one.top = Math.max(one.top, ends[rank - 1]!.top + NAME_HEIGHT); });
  ends.reverse().forEach((one, rank) => { one.top = Math.min(one.top, high - rank * NAME_HEIGHT); });
  return ends.sort((a, b) => a.at - b.at).map((one) => Math.round(one.top));
}

function buildOptions(Plot: typeof uPlot, props: Props, series: ReturnType<typeof align>["series"], width: number,
  onHover: (at: number | null) => void, onEnds: (ends: number[]) => void): uPlot.Options {
  const muted = getColor("muted");
  const font = `11px ${getColor("sans") || "sans-serif"}`;
  const grid = { stroke: getColor("line"), width: 1 };
  const bands = series.flatMap((one, at) =>
    one.kind === "low" ? [{ series: [at + 2, at + 1] as [number, number], fill: `${getColor(one.curve.color)}2e` }] : []);
  const looks = series.map((one): uPlot.Series => ({
    stroke: one.kind === "line" ? getColor(one.curve.color) : `${getColor(one.curve.color)}40`,
    width: one.kind === "low" || one.kind === "high" ? 0 : 1.5,
    dash: one.curve.dash?.length ? one.curve.dash : undefined,
    spanGaps: true,
    pxAlign: 0,
    points: { show: one.kind === "line" && one.curve.x.length <= 2, size: 6, fill: getColor(one.curve.color) },
  }));
  const ticks = (_: uPlot, splits: number[]) => {
    const texts = formatTicks(splits.filter((value) => value !== null));
    return splits.map((value) => (value === null ? "" : texts.shift()!));
  };
  const isWhole = !props.logX && !props.xLabel?.startsWith("seconds");
  return {
    width,
    height: props.height ?? 220,
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { x: true, y: false }, y: false },
    scales: {
      x: { time: false, distr: props.logX ? 3 : 1 },
      y: { distr: props.logY ? 3 : 1, range: props.range && !props.logY ? () => props.range! : undefined },
    },
    bands,
    series: [{}, ...looks],
    axes: [
      { stroke: muted, font, grid: { show: false }, ticks: { show: false }, size: 28, gap: 4, space: (_self: unknown, _axis: number, _min: number, _max: number, width: number) => Math.max(70, width / 6), values: ticks, incrs: isWhole ? WHOLE : undefined },
      { stroke: muted, font, grid, ticks: { show: false }, size: 58, gap: 6, space: 32, values: ticks },
    ],
    hooks: {
      setCursor: [(plot) => onHover(plot.cursor.idx ?? null)],
      draw: [(plot) => { drawMarks(plot, props); onEnds(findEnds(plot, series)); }],
    },
  };
}

export function Chart(props: Props) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [library, setLibrary] = useState<typeof uPlot | null>(null);
  const [isTable, setIsTable] = useState(false);
  const [at, setAt] = useState<number | null>(null);
  const [ends, setEnds] = useState<number[]>([]);
  const [isWide, setIsWide] = useState(false);
  const dark = isDark.value;
  const weight = props.weight ?? 0;
  const aligned = library ? align(library, props.curves, weight) : null;

  useEffect(() => void import("./library").then((loaded) => setLibrary(() => loaded.default)), []);
  // names beside lines that end at the same place would say less than a list
  const hasNames = isWide && !isTable && props.curves.length > 1 && (props.curves.length + 1) * NAME_HEIGHT <= (props.height ?? 220);
  const shape = JSON.stringify([props.curves.map((one) => [one.id, one.color, !!one.band, one.x.length <= 2]), props.logX, props.logY,
    weight > 0, props.range, props.marks, dark, isTable, hasNames]);
  useEffect(() => {
    if (!library || !aligned || !holder.current || isTable) return;
    const width = holder.current.clientWidth;
    const noteEnds = (found: number[]) => setEnds((before) => (before.join() === found.join() ? before : found));
    const made = new library(buildOptions(library, props, aligned.series, width, setAt, noteEnds), aligned.data, holder.current);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      const size = holder.current?.clientWidth;
      setIsWide((holder.current?.parentElement?.clientWidth ?? 0) >= WIDE);
      if (size && size !== made.width) made.setSize({ width: size, height: props.height ?? 220 });
    });
    observer.observe(holder.current);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [library, shape]);
  useEffect(() => {
    // drawing the same data again would lose a zoom of the user
    if (plot.current && aligned) plot.current.setData(aligned.data, true);
  }, [props.curves, weight]);

  const x = at !== null ? aligned?.data[0][at] : undefined;
  const unit = props.unit ? ` ${props.unit}` : "";
  const describe = (curve: Curve) => {
    const known = curve.y.filter((value): value is number => value !== null);
    return known.length ? `${curve.name}: last ${formatMetric(props.metric, known.at(-1))}, lowest ${formatMetric(props.metric, known.reduce((a, b) => Math.min(a, b)))}` : `${curve.name}: no values`;
  };
  return (
    <figure class={`chart${hasNames ? " wide" : ""}`}>
      <figcaption>
        <span class="chart-title">{props.title}{props.unit && <span class="muted"> {props.unit}</span>}</span>
        <button class="quiet small" aria-pressed={isTable} onClick={() => setIsTable(!isTable)}
          aria-label={`${props.title} as a table`}>{isTable ? "Chart" : "Table"}</button>
      </figcaption>
      <div class="chart-body">
        {isTable ? <Values {...props} /> : (
        <div ref={holder} class="plot" role="img"
          aria-label={`${props.title} over ${props.xLabel ?? "steps"}. ${props.curves.map(describe).join("; ")}`} />
      )}
      <ul class="legend">
        {props.curves.map((curve, number) => {
          const index = aligned?.series.findIndex((one) => one.curve === curve && one.kind === "line") ?? -1;
          const column = index >= 0 ? (aligned?.data[index + 1] as (number | null)[]) : null;
          const last = curve.y.findLast((value) => value !== null) ?? null;
          const value = x !== undefined && at !== null ? column?.[at] ?? null : weight > 0 ? column?.findLast((one) => one != null) ?? null : last;
          return (
            <li key={curve.id} style={hasNames ? { top: `${ends[number] ?? 0}px` } : undefined}>
              {props.curves.length > 1 && <span class={`swatch bg-${curve.color}${curve.dash?.length ? " dashed" : ""}`} aria-hidden="true" />}
              <span class="legend-name" title={curve.name}>{props.curves.length > 1 ? curve.name : x === undefined ? "last" : "value"}</span>
              <span class="figure">{formatMetric(props.metric, value)}{unit}</span>
            </li>
          );
        })}
        {x !== undefined && <li class="muted legend-x">{props.xLabel ?? "step"} {formatFigure(x)}</li>}
      </ul>
      </div>
    </figure>
  );
}

function Values(props: Props) {
  const every = [...new Set(props.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const stride = Math.ceil(every.length / TABLE_ROWS) || 1;
  const shown = every.filter((_, at) => at % stride === 0 || at === every.length - 1);
  const maps = props.curves.map((curve) => new Map(curve.x.map((x, at) => [x, curve.y[at] ?? null])));
  return (
    <div class="scroll chart-table" tabIndex={0} role="region" aria-label={`values of ${props.title}`}>
      <table>
        <thead><tr><th class="number">{props.xLabel ?? "step"}</th>{props.curves.map((curve) => <th key={curve.id} class="number">{curve.name}</th>)}</tr></thead>
        <tbody>
          {shown.map((x) => (
            <tr key={x}><td class="number">{formatFigure(x)}</td>
              {maps.map((map, at) => <td key={at} class="number">{props.curves[at]!.nonfinite?.includes(x) ? "not finite" : formatMetric(props.metric, map.get(x) ?? null)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
