// Several runs: curves over each other, results, and the settings in which they differ.
import { useEffect, useState } from "preact/hooks";
import { get, post, toMessage, toRun } from "../api";
import { Chart, type Curve } from "../charts/plot";
import { clipRange, spread } from "../charts/smooth";
import { CopyButton, Empty, Failure, Heading, Loading, Menu, State, useAnswer } from "../components/basics";
import { assignLooks } from "../colors";
import { METRIC_UNITS, formatComparison, formatLoss, formatMetricTitle, isExact } from "../format";
import { place, setQuery, toUrl } from "../router";
import type { RunEntry } from "./runs";

interface Row { group: string; name: string; values: unknown[] }
interface Compared {
  runs: RunEntry[];
  rows: Row[];
  metrics: string[];
  groups: string[][];
  /** Where on each axis a fork begins that is compared with its parent, or with another fork of it. */
  starts: Record<string, Record<string, number>>;
  links: { id: string; parent: { id: string | null; step: number; name: string } }[];
}
type Series = Record<string, { x: number[]; y: (number | null)[]; nonfinite: number[] }>;

const FIRST = ["loss", "validation/loss", "grad_norm", "lr"];
const GROUPS: Record<string, string> = {
  outcome: "Results", numerics: "Settings that change the result", performance: "Settings for speed and memory",
  bookkeeping: "Other settings", surroundings: "Code, packages and machine",
};
const OUTCOMES: Record<string, string> = { "tokens/s": "speed", seconds: "duration" };
const AXES: [string, string][] = [["step", "step"], ["tokens", "tokens"], ["time", "seconds of training"]];

export function ComparePage() {
  const { runs = "", metrics = "", x = "step", smooth = "0", log = "", clip = "", seeds = "" } = place.value.query;
  const ids = runs.split(",").filter(Boolean);
  const [compared, error, again] = useAnswer<Compared | null>((signal) => (ids.length ? post<Compared>("/compare", { runs: ids }, signal) : Promise.resolve(null)), runs);
  const [series, setSeries] = useState<Map<string, Series>>(new Map());
  const shown = metrics ? metrics.split(",") : FIRST.filter((name) => compared?.metrics.includes(name));
  const key = JSON.stringify([runs, shown, x]);
  const [failed, setFailed] = useState<string | null>(null);
  useEffect(() => {
    if (!ids.length || !shown.length) return;
    const control = new AbortController();
    Promise.all(ids.map((run) => get<{ series: Series }>(toRun(run, "/series"), { metrics: shown.join(","), x, points: 1000 }, control.signal)))
      .then((found) => { setSeries(new Map(ids.map((id, at) => [id, found[at]!.series]))); setFailed(null); },
        (problem) => control.signal.aborted || setFailed(toMessage(problem)));
    return () => control.abort();
  }, [key]);
  const looks = assignLooks(ids);
  if (!ids.length) return <div class="page"><div class="page-head"><Heading>Compare</Heading></div><Chooser ids={[]} /></div>;
  const placed = new Map([...series].map(([id, found]) => [id, shift(found, compared?.starts[id]?.[x] ?? 0)]));
  const groups = seeds ? compared?.groups ?? [] : [];
  const plotCommand = ["titanrun plot", ...ids.map((id) => `runs/${id}`), `--metric ${shown[0] ?? "loss"}`, x !== "step" ? `--x ${x}` : "", Number(smooth) && !isExact(shown[0] ?? "loss") ? `--smooth ${smooth}` : ""].filter(Boolean).join(" ");
  return (
    <div class="page">
      <div class="page-head"><Heading>Compare</Heading><span class="muted">{ids.length} {ids.length === 1 ? "run" : "runs"}</span></div>
      <ul class="run-chips" aria-label="Compared runs">
        {ids.map((id) => {
          const entry = compared?.runs.find((one) => one.id === id);
          return <li key={id} class="run-chip"><span class={`swatch bg-${looks.get(id)!.color}`} aria-hidden="true" /><a href={toUrl("/run", { id })}>{id}</a>{entry && <State state={entry.state} />}
            <button class="quiet icon" aria-label={`remove ${id}`} onClick={() => setQuery({ runs: ids.filter((one) => one !== id).join(",") })}>✕</button></li>;
        })}
        <li><Chooser ids={ids} /></li>
      </ul>
      {error != null && <Failure text={toMessage(error)} retry={again} />}
      {failed && <Failure text={failed} />}
      {!compared && error == null && <Loading what="the runs" />}
      {compared && <>
        <div class="controls">
          <label>Over <select value={x} onChange={(event) => setQuery({ x: event.currentTarget.value })}>{AXES.map(([name, title]) => <option key={name} value={name}>{title}</option>)}</select></label>
          <label>Smoothing <input type="range" min="0" max="0.99" step="0.01" value={smooth} onInput={(event) => setQuery({ smooth: event.currentTarget.value })} /><span class="figure">{Number(smooth).toFixed(2)}</span></label>
          <label class="check"><input type="checkbox" checked={log.includes("y")} onChange={(event) => setQuery({ log: event.currentTarget.checked ? `${log}y` : log.replace("y", "") })} /> Log y</label>
          <label class="check"><input type="checkbox" checked={log.includes("x")} onChange={(event) => setQuery({ log: event.currentTarget.checked ? `${log}x` : log.replace("x", "") })} /> Log x</label>
          <label class="check"><input type="checkbox" checked={!!clip} onChange={(event) => setQuery({ clip: event.currentTarget.checked ? "1" : undefined })} /> Clip outliers</label>
          {compared.groups.length > 0 && <label class="check"><input type="checkbox" checked={!!seeds} onChange={(event) => setQuery({ seeds: event.currentTarget.checked ? "1" : undefined })} /> Merge seeds</label>}
          <Menu title={`Metrics ${shown.length}`} wide><div class="checks">{compared.metrics.map((name) => (
            <label key={name} class="check"><input type="checkbox" checked={shown.includes(name)}
              onChange={(event) => setQuery({ metrics: (event.currentTarget.checked ? [...shown, name] : shown.filter((one) => one !== name)).join(",") })} /> {formatMetricTitle(name)}</label>))}</div></Menu>
          <CopyButton text={plotCommand} label="Copy as titanrun plot" />
        </div>
        <div class="charts">
          {shown.map((name) => {
            const curves = buildCurves(name, ids, placed, looks, groups);
            const range = clip ? clipRange(curves.flatMap((curve) => curve.y.filter((value): value is number => value !== null))) : null;
            return curves.length > 0 && <Chart key={name} title={formatMetricTitle(name)} unit={METRIC_UNITS[name]} metric={name} curves={curves} range={range}
              weight={Number(smooth)} logY={log.includes("y")} logX={log.includes("x")} xLabel={AXES.find(([axis]) => axis === x)?.[1]} height={250} />;
          })}
        </div>
        <Lineage links={compared.links} />
        <Differences compared={compared} ids={ids} looks={looks} />
      </>}
    </div>
  );
}

/** Curves that begin where those of the parent were left. */
function shift(series: Series, start: number): Series {
  if (!start) return series;
  return Object.fromEntries(Object.entries(series).map(([name, one]) => [name, { ...one, x: one.x.map((x) => x + start), nonfinite: one.nonfinite.map((x) => x + start) }]));
}

function buildCurves(name: string, ids: string[], series: Map<string, Series>, looks: ReturnType<typeof assignLooks>, groups: string[][]): Curve[] {
  const merged = new Set(groups.flat());
  const single = ids.filter((id) => !merged.has(id) && series.get(id)?.[name]).map((id): Curve => ({ id, name: id, isExact: isExact(name), ...looks.get(id)!, ...series.get(id)![name]! }));
  const together = groups.flatMap((group): Curve[] => {
    const found = group.flatMap((id) => series.get(id)?.[name] ?? []);
    const first = group[0]!;
    if (!found.length) return [];
    const { x, mean, low, high } = spread(found);
    return [{ id: first, name: `${first}, mean of ${group.length} seeds`, isExact: isExact(name), ...looks.get(first)!, x, y: mean, band: { low, high } }];
  });
  return [...together, ...single];
}

function Chooser({ ids }: { ids: string[] }) {
  const [text, setText] = useState("");
  const [listed] = useAnswer((signal) => get<{ runs: RunEntry[]; total: number }>("/runs", { text, limit: 20 }, signal), text);
  const rest = listed?.runs.filter((run) => !ids.includes(run.id)) ?? [];
  if (listed?.total === 0) return <Empty title="No runs to compare"><p class="muted">Train the recipe with two settings, then compare the runs here.</p><a class="button" href="/edit">Open a recipe</a></Empty>;
  const list = (
    <div class="chooser">
      <input data-filter type="search" value={text} placeholder="name of a run" aria-label="Find runs" onInput={(event) => setText(event.currentTarget.value)} />
      <ul>{rest.map((run) => (
        <li key={run.id}><button class="row-button" onClick={() => setQuery({ runs: [...ids, run.id].join(",") })}><span class="grow">{run.id}</span><span class="figure">{formatLoss(run.loss)}</span><State state={run.state} /></button></li>))}</ul>
    </div>
  );
  return ids.length ? <Menu title="Add a run" wide>{list}</Menu> : <><p class="muted">Choose the runs to compare.</p>{list}</>;
}

function Lineage({ links }: { links: Compared["links"] }) {
  if (!links.length) return null;
  return <section><h2>Lineage</h2><ul class="lineage">{links.map(({ id, parent }) => (
    <li key={id}><span>{parent.id ?? parent.name}</span><span class="muted"> step {parent.step} → </span><a href={toUrl("/run", { id })}>{id}</a></li>))}</ul></section>;
}

function Differences({ compared, ids, looks }: { compared: Compared; ids: string[]; looks: ReturnType<typeof assignLooks> }) {
  const [isAll, setIsAll] = useState(false);
  const groups = [...new Set(compared.rows.map((row) => row.group))].filter((group) => isAll || group !== "surroundings");
  const hidden = compared.rows.filter((row) => row.group === "surroundings").length;
  if (!compared.rows.length) return <Empty title="These runs do not differ" />;
  return (
    <section>
      <h2>Results and differences</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="results and differences"><table class="differences">
        <thead><tr><th><span class="hidden">Item</span></th>{ids.map((id) => <th key={id}><span class={`swatch bg-${looks.get(id)!.color}`} aria-hidden="true" /> {id}</th>)}</tr></thead>
        {groups.map((group) => (
          <tbody key={group}>
            <tr class="group"><th colSpan={ids.length + 1} scope="rowgroup">{GROUPS[group] ?? group}</th></tr>
            {compared.rows.filter((row) => row.group === group).map((row) => {
              const best = findBest(row);
              return <tr key={row.name}><th scope="row">{group === "outcome" ? OUTCOMES[row.name] ?? row.name : <code>{row.name}</code>}</th>
                {row.values.map((value, at) => <td key={at} class={`figure${at === best ? " best" : ""}`}>{formatComparison(group, row.name, value)}{at === best && <span class="hidden"> (best)</span>}</td>)}</tr>;
            })}
          </tbody>))}
      </table></div>
      {hidden > 0 && <button class="quiet" onClick={() => setIsAll(!isAll)}>{isAll ? "Hide" : "Show"} {hidden} {hidden === 1 ? "difference" : "differences"} of code, packages and machine</button>}
    </section>
  );
}

function findBest(row: Row): number {
  if (row.group !== "outcome" || !row.name.includes("loss")) return -1;
  const values = row.values.map((value) => (typeof value === "number" ? value : Infinity));
  const best = Math.min(...values);
  return Number.isFinite(best) && values.filter((value) => value === best).length === 1 ? values.indexOf(best) : -1;
}
