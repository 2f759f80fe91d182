// Does it fit, and how fast could it be: numbers of ranks by accelerators, each cell one `titanrun plan`.
import { useEffect, useState } from "preact/hooks";
import { get, post, toMessage } from "../api";
import { CopyButton, Empty, Failure, Heading, NothingRuns, Loading, State, useAnswer } from "../components/basics";
import { Conditions, type Job, type Preview, needsConsent } from "../components/command";
import { RecipePicker, splitOverrides } from "../components/recipes";
import { formatBytes, formatCount, formatFigure, formatWhole } from "../format";
import { place, setQuery } from "../router";
import { about } from "../state";

interface Plan {
  device: string;
  ranks: number;
  mesh: Record<string, number>;
  batch: { rows: number; tokens: number; passes: number; microbatches: number };
  length: { steps: number | null; tokens: number | null; epochs: number | null };
  parameters: number;
  memory: { name: string; bytes: number; formula: string }[];
  memory_total: number;
  memory_of_device: number;
  fits: boolean;
  bubble: number;
  traffic: { axis: string; bytes: number; what: string }[];
  seconds_per_step: [number, number] | null;
  checkpoint_bytes: number;
  warnings: string[];
}
interface Cell { ranks: number; device: string; preview: Preview; job: Job | null }
interface Device { name: string; title: string }

const SIZES = Array.from({ length: 11 }, (_, power) => 2 ** power);
const isEnded = (job: Job | null) => !!job && job.state !== "queued" && job.state !== "running";
const split = (text: string) => text.split(",").filter(Boolean);

export function PlanPage() {
  const { file = "", set = "", ranks = "1,8,64", devices = "h100", cell = "" } = place.value.query;
  const [known] = useAnswer((signal) => get<{ devices: Device[] }>("/plan-devices", {}, signal), "devices");
  const sizes = split(ranks).map(Number);
  const names = split(devices);
  if (about.value?.read_only !== false) return <NothingRuns title="Plan" why="each cell of the plan runs a command" isKnown={!!about.value} />;
  const toggle = (name: string, list: string[], value: string, order: string[]) => {
    const kept = list.includes(value) ? list.filter((one) => one !== value) : [...list, value];
    setQuery({ [name]: order.filter((one) => kept.includes(one)).join(","), cell: undefined });
  };
  return (
    <div class="page">
      <div class="page-head"><Heading>Plan</Heading></div>
      <div class="picker"><RecipePicker file={file} set={set} kinds={["recipe", "shipped"]} />
        <fieldset class="choice"><legend>Ranks</legend>{SIZES.map((size) => <label key={size} class="check"><input type="checkbox" checked={sizes.includes(size)} onChange={() => toggle("ranks", sizes.map(String), String(size), SIZES.map(String))} /> {formatWhole(size)}</label>)}</fieldset>
        <fieldset class="choice"><legend>Device of each rank</legend>{known?.devices.map((one) => <label key={one.name} class="check"><input type="checkbox" checked={names.includes(one.name)} onChange={() => toggle("devices", names, one.name, known.devices.map((two) => two.name))} /> {one.title}</label>)}</fieldset>
      </div>
      {!file ? <Empty title="Does it fit?"><p class="muted">Choose a recipe to see memory, time and traffic on any number of accelerators. No GPU is needed: the model is built without memory.</p></Empty>
        : !sizes.length || !names.length ? <Empty title="Choose a number of ranks and a device" />
        : known && <Table key={JSON.stringify([file, set, ranks, devices])} file={file} set={set} sizes={sizes} devices={known.devices.filter((one) => names.includes(one.name))} shown={cell} />}
    </div>
  );
}

function Table({ file, set, sizes, devices, shown }: { file: string; set: string; sizes: number[]; devices: Device[]; shown: string }) {
  const [cells, setCells] = useState<Record<string, Cell>>({});
  const [failures, setFailures] = useState<Record<string, string>>({});
  const [isAllowed, setAllowed] = useState(false);
  const [count, setCount] = useState(0);
  const wanted = sizes.flatMap((ranks) => devices.map(({ name }) => ({ ranks, device: name, key: `${ranks}-${name}` })));
  useEffect(() => {
    const control = new AbortController();
    const load = async () => {
      for (const { ranks, device, key } of wanted) {
        try {
          const preview = await post<Preview>("/jobs/preview", { command: "plan", target: file, overrides: splitOverrides(set), ranks, device }, control.signal);
          const job = preview.known ? await get<Job>(`/jobs/${preview.known}`, {}, control.signal) : null;
          setCells((before) => ({ ...before, [key]: { ranks, device, preview, job } }));
        } catch (problem) {
          if (control.signal.aborted) return;
          setFailures((before) => ({ ...before, [key]: toMessage(problem) }));
        }
      }
    };
    const timer = setTimeout(() => void load(), 250);
    return () => { clearTimeout(timer); control.abort(); };
  }, [count]);
  const pending = Object.entries(cells).filter(([, one]) => one.job && !isEnded(one.job));
  useEffect(() => {
    if (!pending.length) return;
    const timer = setTimeout(async () => {
      for (const [key, one] of pending) {
        const job = await get<Job>(`/jobs/${one.job!.id}`).catch(() => null);
        if (job) setCells((before) => ({ ...before, [key]: { ...before[key]!, job } }));
      }
    }, 500);
    return () => clearTimeout(timer);
  }, [cells]);
  const open = Object.entries(cells).filter(([, one]) => !one.job);
  const previews = Object.values(cells).map((one) => one.preview);
  const commands = open.map(([, one]) => one.preview.shell).join("\n");
  const start = async () => {
    for (const [key, one] of open) {
      try {
        const job = await post<Job>("/jobs", { digest: one.preview.digest, allows_code: isAllowed });
        setCells((before) => ({ ...before, [key]: { ...before[key]!, job } }));
      } catch (problem) {
        setFailures((before) => ({ ...before, [key]: toMessage(problem) }));
      }
    }
  };
  const isWaiting = previews.length + Object.keys(failures).length < wanted.length;
  const faults = [...new Set(Object.values(failures))];
  const chosen = cells[shown];
  return <>
    {isWaiting && <Loading what="the commands" />}
    {faults.length === 1 && Object.keys(failures).length === wanted.length && <Failure text={faults[0]!} retry={() => { setFailures({}); setCount(count + 1); }} />}
    {previews[0] && <Conditions preview={previews[0]} isAllowed={isAllowed} setAllowed={setAllowed} />}
    {open.length > 0 && (
      <div class="card-body plan-commands">
        <details open={open.length < 4}><summary>{open.length} {open.length === 1 ? "command" : "commands"}, two at a time</summary><pre class="output" tabIndex={0} aria-label="commands">{commands}</pre></details>
        <div class="actions left"><button class="primary" disabled={isWaiting || (needsConsent(previews) && !isAllowed)} onClick={start}>Plan</button><CopyButton text={commands} label="Copy commands" /></div>
      </div>
    )}
    <p class="hidden" role="status">{pending.length ? `${pending.length} of ${wanted.length} cells are not ready` : ""}</p>
    <div class="scroll" tabIndex={0} role="region" aria-label="Plan"><table class="plan">
      <thead><tr><th scope="col">Ranks</th>{devices.map((one) => <th key={one.name} scope="col">{one.title}</th>)}</tr></thead>
      <tbody>{sizes.map((ranks) => (
        <tr key={ranks}><th scope="row" class="figure">{formatWhole(ranks)}</th>
          {devices.map(({ name }) => <td key={name}><CellView cell={cells[`${ranks}-${name}`]} failure={failures[`${ranks}-${name}`]} isChosen={shown === `${ranks}-${name}`} open={() => setQuery({ cell: `${ranks}-${name}` })} /></td>)}</tr>))}</tbody>
    </table></div>
    {chosen?.job?.result && <Details plan={chosen.job.result} shell={chosen.preview.shell} />}
  </>;
}

function CellView({ cell, failure, isChosen, open }: { cell?: Cell; failure?: string; isChosen: boolean; open: () => void }) {
  if (failure) return <span class="tone-error plan-fault">{failure}</span>;
  const job = cell?.job;
  if (!job) return <span class="muted">–</span>;
  if (!isEnded(job)) return <State state={job.state} />;
  const plan: Plan | undefined = job.result;
  if (!plan) return <span class="tone-error plan-fault">{(job.output || job.reason || "failed").match(/error\S*: (.*)/)?.[1] ?? "the command failed"}</span>;
  return (
    <button class={`plan-cell${isChosen ? " chosen" : ""}`} aria-pressed={isChosen} onClick={open}>
      <span class={`state tone-${plan.fits ? "ok" : "error"}`}><span class="shape" aria-hidden="true">{plan.fits ? "✓" : "✕"}</span>{plan.fits ? "fits" : "does not fit"}</span>
      <MemoryBar plan={plan} />
      <span class="muted figure">{formatBytes(plan.memory_total)}{plan.seconds_per_step && ` · ${formatRange(plan.seconds_per_step)} per step`}</span>
    </button>
  );
}

const formatRange = ([low, high]: [number, number]) => (high < 1 ? `${formatFigure(round(low * 1000))} to ${formatFigure(round(high * 1000))} ms` : `${formatFigure(round(low))} to ${formatFigure(round(high))} s`);
const round = (value: number) => Number(value.toPrecision(2));

function MemoryBar({ plan, tall }: { plan: Plan; tall?: boolean }) {
  const whole = Math.max(plan.memory_of_device, plan.memory_total);
  // what is not in memory at once counts as negative: the other parts share the total
  const share = plan.memory_total / plan.memory.reduce((sum, part) => sum + Math.max(0, part.bytes), 0);
  let at = 0;
  return (
    <svg class={`memory${tall ? " tall" : ""}`} viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={`${formatBytes(plan.memory_total)} of ${formatBytes(plan.memory_of_device)}`}>
      <rect class="memory-back" width="100" height="8" />
      {plan.memory.map((part, number) => {
        const x = at;
        const width = (100 * share * Math.max(0, part.bytes)) / whole;
        at += width;
        return <rect key={part.name} class={`fill-series-${(number % 8) + 1}`} x={x} width={width} height="8" />;
      })}
      {plan.memory_total > plan.memory_of_device && <rect class="memory-limit" x={(100 * plan.memory_of_device) / whole - 0.4} width="0.8" height="8" />}
    </svg>
  );
}

function Details({ plan, shell }: { plan: Plan; shell: string }) {
  const mesh = Object.entries(plan.mesh).filter(([, size]) => size > 1).map(([name, size]) => `${name} ${size}`).join(", ") || "one rank";
  const facts: [string, string][] = [
    ["Mesh", mesh], ["Parameters", formatCount(plan.parameters)], ["Tokens per step", formatCount(plan.batch.tokens)], ["Length", plan.length.steps === null ? "–" : `${formatWhole(plan.length.steps)} steps`],
    ["Tokens", formatCount(plan.length.tokens)], ["Passes per step", formatWhole(plan.batch.passes)], ["Bubble", `${(100 * plan.bubble).toFixed(1)} %`],
    ["Seconds per step", plan.seconds_per_step ? formatRange(plan.seconds_per_step) : "–"], ["A checkpoint", formatBytes(plan.checkpoint_bytes)],
  ];
  return (
    <section aria-label="Chosen plan">
      <h2>{formatWhole(plan.ranks)} × {plan.device}</h2>
      {plan.warnings.map((text) => <p key={text} class="notice tone-warning">{text}</p>)}
      <dl class="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
      <h3>Memory of a rank: {formatBytes(plan.memory_total)} of {formatBytes(plan.memory_of_device)}</h3>
      <MemoryBar plan={plan} tall />
      <div class="scroll" tabIndex={0} role="region" aria-label="Memory by part"><table>
        <thead><tr><th>Part</th><th class="number">Memory</th><th>Estimated as</th></tr></thead>
        <tbody>{plan.memory.map((part, at) => <tr key={part.name}><td><span class={`swatch block bg-series-${(at % 8) + 1}`} /> {part.name}</td><td class="number nowrap">{formatBytes(part.bytes)}</td><td class="muted wrap">{part.formula}</td></tr>)}</tbody></table></div>
      {plan.traffic.length > 0 && <><h3>Traffic of a step</h3><table><thead><tr><th>Axis</th><th class="number">Bytes</th><th>What</th></tr></thead>
        <tbody>{plan.traffic.map((one) => <tr key={one.axis + one.what}><td>{one.axis}</td><td class="number nowrap">{formatBytes(one.bytes)}</td><td class="muted wrap">{one.what}</td></tr>)}</tbody></table></>}
      <p class="label">Command</p><div class="command"><code>{shell}</code><CopyButton text={shell} /></div>
    </section>
  );
}
