// What the editor shows beside the text: problems, values, differences, the schedule, the size of the runs.
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, post, toMessage, toRun } from "../api";
import { Chart } from "../charts/plot";
import { Dialog, Empty, Failure, Loading, useAnswer } from "../components/basics";
import { type Change, ChangeList, type FileEntry } from "../components/recipes";
import type { Problem, RecipeEditor } from "../editor";
import { formatCount, formatWhole } from "../format";
import { go, place, toUrl } from "../router";
import { type Setting, SettingsTable } from "./run_parts";
import type { RunEntry } from "./runs";

export interface Buffer { path: string; text: string; disk: string; sha256: string | null; writable: boolean; reason: string | null; newline: string }
interface RunFacts { name: string; model: string; steps: number | null; epochs: number | null; tokens_per_step: number | null; tokens: number | null; ranks: number | null }
export interface Examined { version: number; problems: Problem[]; is_resolved: boolean; runs: RunFacts[]; resolved?: Setting[][]; schedule?: ({ x: number[]; y: number[] } | null)[] }

export function Size({ runs }: { runs: RunFacts[] }) {
  const [run] = runs;
  if (runs.length !== 1 || !run) return runs.length ? <span>{runs.length} stages</span> : null;
  const parts = [run.model, run.steps ? `${formatWhole(run.steps)} steps` : null, run.tokens_per_step ? `${formatCount(run.tokens_per_step)} tokens/step` : null, run.tokens ? `${formatCount(run.tokens)} tokens` : null];
  return <span class="size">{parts.filter(Boolean).join(" · ")}</span>;
}

export function ProblemList({ examined, editor, isWritable }: { examined: Examined | null; editor: RecipeEditor | null; isWritable: boolean }) {
  const [word, setWord] = useState<string | null>(null);
  if (!examined) return <Loading what="problems" />;
  if (!examined.problems.length) return <Empty title="No problems"><p class="muted">{examined.is_resolved ? "A resolved recipe: the record of a run." : <>Checked while you type, as <code>titanrun validate</code> does.</>}</p></Empty>;
  return <>
    {word !== null && <Explanation word={word} onClose={() => setWord(null)} />}
    <ul class="problems">
      {examined.problems.map((one, at) => {
        const span = one.from !== null ? [one.from, one.to!] as const : one.included ?? null;
        return (
          <li key={at} class={`problem tone-border-${one.severity}`}>
            <p class="problem-head"><span class={`tone-${one.severity}`}><span class="shape" aria-hidden="true">{one.severity === "error" ? "✕" : "!"}</span>{one.severity}</span> <code>{one.label}</code></p>
            <p>{one.message}</p>
            {one.help && <p class="muted">{one.help}</p>}
            {one.related.map((other, index) => <p key={index} class="muted">{other.message}{other.line ? `, ${other.file}:${other.line}` : ""}</p>)}
            <div class="actions left">
              {one.file && one.from === null && one.line && <button class="small" onClick={() => go("/edit", { ...place.value.query, file: one.file!, line: String(one.line) })}>Open {one.file.split("/").at(-1)}</button>}
              {span ? <button class="small" onClick={() => editor?.goTo(span[0], span[1])}>{one.from !== null ? `Line ${one.line}` : `${one.file}:${one.line}`}</button> : one.file && <span class="muted">{one.file}:{one.line}</span>}
              {isWritable && one.actions.map((action) => <button key={action.title} class={`small${action.preferred ? " primary" : ""}`} onClick={() => editor?.apply(action)}>{action.title}</button>)}
              <button class="quiet small" aria-label={`Explain ${one.label}`} onClick={() => setWord(one.label.split("/").at(-1)!)}>Explain</button>
            </div>
          </li>
        );
      })}
    </ul>
  </>;
}

/** What `titanrun explain` says about the code or the rule of a problem. */
function Explanation({ word, onClose }: { word: string; onClose: () => void }) {
  const [answer, error] = useAnswer((signal) => post<{ text: string }>("/explain", { word }, signal), word);
  return (
    <Dialog title={word} onClose={onClose} wide>
      {error != null && <Failure text={toMessage(error)} />}
      {!answer && error == null && <Loading what="the explanation" />}
      {answer && <pre class="output" tabIndex={0} aria-label="explanation">{answer.text}</pre>}
      <p class="muted">The same in a terminal: <code>titanrun explain {word}</code></p>
    </Dialog>
  );
}

/** How large the run is, or each stage of several, and where to go from here. */
export function Outline({ examined, file }: { examined: Examined | null; file: string }) {
  if (!examined) return <Loading what="the size" />;
  if (!examined.runs.length) return <Empty title="No size"><p class="muted">The recipe has errors: correct them to see how long it trains.</p></Empty>;
  return <>
    {examined.runs.map((run) => (
      <section key={run.name} aria-label={run.name}>
        {examined.runs.length > 1 && <h3>{run.name}</h3>}
        <dl class="facts">{listSizes(run).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
      </section>))}
    <p class="muted">Memory, time and traffic on any number of accelerators, without one:</p>
    <div class="actions left"><a class="button" href={toUrl("/plan", { file })}>Plan</a><a class="button" href={toUrl("/data", { file })}>Data</a><a class="button" href={toUrl("/launch", { file })}>Launch</a></div>
  </>;
}

function listSizes(run: RunFacts): [string, string][] {
  return [
    ["Model", run.model], run.epochs ? ["Epochs", formatWhole(run.epochs)] : ["Steps", formatWhole(run.steps)], ["Tokens per step", formatCount(run.tokens_per_step)],
    ["Tokens", formatCount(run.tokens)], ["Ranks", run.ranks ? formatWhole(run.ranks) : "any"],
  ];
}

function StagePicker({ runs, value, onChange }: { runs: RunFacts[]; value: number; onChange: (value: number) => void }) {
  if (runs.length < 2) return null;
  return <label>Stage <select value={value} onChange={(event) => onChange(Number(event.currentTarget.value))}>{runs.map((run, at) => <option key={at} value={at}>{run.name}</option>)}</select></label>;
}

export function Values({ examined, file }: { examined: Examined | null; file: string }) {
  const [filter, setFilter] = useState("");
  const [isWritten, setIsWritten] = useState(true);
  const [stage, setStage] = useState(0);
  if (!examined) return <Loading what="values" />;
  const values = examined.resolved?.[stage];
  if (!values) return examined.runs.length || !examined.problems.length ? <Loading what="values" /> : <Empty title="No values"><p class="muted">The recipe has errors: correct them to see every value and where it comes from.</p></Empty>;
  const shown = values.filter((one) => (!isWritten || one.file) && one.path.includes(filter));
  return <>
    <div class="controls">
      <StagePicker runs={examined.runs} value={stage} onChange={setStage} />
      <input data-filter type="search" value={filter} placeholder="optimizer.lr" aria-label="Filter values" onInput={(event) => setFilter(event.currentTarget.value)} />
      <label class="check"><input type="checkbox" checked={isWritten} onChange={(event) => setIsWritten(event.currentTarget.checked)} /> Only written</label>
    </div>
    <SettingsTable settings={shown} file={file} open={(one) => go("/edit", { ...place.value.query, file: one.file === file ? file : one.file!, line: String(one.line) })} />
  </>;
}

export function Difference({ buffer, examined, files }: { buffer: Buffer; examined: Examined | null; files: FileEntry[] }) {
  const [other, setOther] = useState("");
  const [step, setStep] = useState<number | null>(null);
  const [isWritten, setIsWritten] = useState(false);
  const run = other.startsWith("run:") ? other.slice(4) : "";
  const [details] = useAnswer((signal) => (run ? get<{ checkpoints: { step: number }[] }>(toRun(run), {}, signal) : Promise.resolve(null)), run);
  useEffect(() => setStep(null), [other]);
  const [runs] = useAnswer((signal) => get<{ runs: RunEntry[] }>("/runs", { limit: 50 }, signal), "runs");
  const [answer, error] = useAnswer((signal) => (other ? post<{ changes: Change[] }>("/diff", { path: buffer.path, text: buffer.text, other, step, written: isWritten }, signal) : Promise.resolve(null)), [other, step, isWritten, examined?.version]);
  return <>
    <div class="controls"><label class="grow field">Compared with<select value={other} onChange={(event) => setOther(event.currentTarget.value)}>
      <option value="">choose</option>
      <optgroup label="Runs">{runs?.runs.map((run) => <option key={run.id} value={`run:${run.id}`}>{run.id}</option>)}</optgroup>
      <optgroup label="Recipes">{files.filter((one) => one.kind === "recipe" && one.path !== buffer.path).map((one) => <option key={one.path} value={`file:${one.path}`}>{one.path}</option>)}</optgroup>
      <optgroup label="Shipped">{files.filter((one) => one.kind === "shipped").map((one) => <option key={one.path} value={`file:${one.path}`}>{one.path.slice(8)}</option>)}</optgroup>
    </select></label>
      {details && details.checkpoints.length > 0 && <label>at <select value={step ?? ""} onChange={(event) => setStep(event.currentTarget.value ? Number(event.currentTarget.value) : null)}>
        <option value="">the run</option>{details.checkpoints.map((one) => <option key={one.step} value={one.step}>step {formatWhole(one.step)}</option>)}</select></label>}
      {other && <label class="check"><input type="checkbox" checked={isWritten} onChange={(event) => setIsWritten(event.currentTarget.checked)} /> Only written</label>}
    </div>
    {!other && <Empty title="What differs from another recipe or run"><p class="muted">Each difference shows whether it changes the result, and whether a resume allows it.</p></Empty>}
    {error != null && <Failure text={toMessage(error)} />}
    {answer && (answer.changes.length === 0 ? <Empty title="No difference" /> : (
      <ChangeList changes={answer.changes} />))}
  </>;
}

export function Schedule({ examined }: { examined: Examined | null }) {
  const [stage, setStage] = useState(0);
  const found = examined?.schedule?.[stage];
  const curves = useMemo(() => (found ? [{ id: "lr", name: "learning rate", color: "series-1", x: found.x, y: found.y }] : []), [found]);
  if (!examined || (!examined.schedule && examined.runs.length)) return <Loading what="the schedule" />;
  if (!found) return <Empty title="No schedule"><p class="muted">{examined.runs.length ? "The run sets no number of steps." : "The recipe has errors: correct them to see the learning rate over the steps."}</p></Empty>;
  return <><StagePicker runs={examined.runs} value={stage} onChange={setStage} /><Chart title="Learning rate" metric="lr" curves={curves} height={260} /></>;
}
