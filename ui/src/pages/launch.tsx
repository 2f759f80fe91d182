// Prepare a command, start it or let it wait for devices, and look at what waits, runs and has ended.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, post, remove, toMessage } from "../api";
import { Empty, Failure, Heading, Loading, State, useAnswer } from "../components/basics";
import { CommandLine, Conditions, type Job, type Preview, ShortCommand, Words, needsConsent, useJob, usePreview } from "../components/command";
import { ChangeList, RecipePicker, splitOverrides } from "../components/recipes";
import { follow } from "../events";
import { formatDate, formatDuration, formatMetric, formatMetricTitle, formatWhole } from "../format";
import { place, toUrl } from "../router";
import { about } from "../state";

interface Queue { jobs: Job[]; slots: number; used: number; devices: string[] }
const MAX_SLOTS = 8;

export function LaunchPage() {
  const [queue, error, again] = useAnswer((signal) => get<Queue>("/jobs", {}, signal), "jobs");
  useEffect(() => follow({ jobs: "" }, (name) => name === "jobs.changed" && again()), []);
  const isReadOnly = about.value?.read_only !== false;
  return (
    <div class="page">
      <div class="page-head"><Heading>Launch</Heading></div>
      <div class="columns wide-left">
        {!isReadOnly && <section aria-labelledby="prepare"><h2 id="prepare">Prepare</h2><Prepare queue={queue} changed={again} /></section>}
        <section aria-labelledby="queue"><h2 id="queue">Queue</h2>
          {error != null && <Failure text={toMessage(error)} retry={again} />}
          {!queue && error == null && <Loading what="the queue" />}
          {queue && <Jobs queue={queue} isReadOnly={isReadOnly} changed={again} />}
        </section>
      </div>
    </div>
  );
}

function Prepare({ queue, changed }: { queue: Queue | null; changed: () => void }) {
  const { file = "", set = "" } = place.value.query;
  const [slots, setSlots] = useState(1);
  const [isAllowed, setAllowed] = useState(false);
  const [failure, setFailure] = useState<string | null>(null);
  const [files] = useAnswer((signal) => get<{ files: { path: string; kind: string }[] }>("/files", {}, signal), "files");
  const isSweep = files?.files.find((one) => one.path === file)?.kind === "sweep";
  const request = { target: file, overrides: splitOverrides(set) };
  const [preview, problem, again] = usePreview(file && files ? { command: isSweep ? "sweep" : "train", ...request } : null);
  const [notice, setNotice] = useState("");
  useEffect(() => { setNotice(""); setFailure(null); }, [file, set]);
  const start = async (isQueued: boolean) => {
    setFailure(null);
    try {
      const job = await post<Job>("/jobs", { digest: preview!.digest, allows_code: isAllowed, queue: isQueued, slots });
      setNotice(job.state === "queued" ? "It waits in the queue." : "Started.");
      changed();
    } catch (refused) {
      setFailure(toMessage(refused));
    }
    again();
  };
  const isBlocked = !preview || (needsConsent([preview]) && !isAllowed);
  return (
    <div class="card-body">
      <RecipePicker file={file} set={set} kinds={["recipe", "sweep", "shipped"]} />
      {!file && <p class="muted">Nothing starts before you have seen its command line. What waits in the queue starts only if its recipe is still the same then.</p>}
      {[problem, failure].filter(Boolean).map((one) => <Failure key={one} text={one!} retry={again} />)}
      {preview && <>
        <CommandLine shell={preview.shell} label={`Command, in ${preview.cwd}`} />
        <Conditions preview={preview} isAllowed={isAllowed} setAllowed={setAllowed} />
        {preview.folder && <p><span class="muted">Run directory:</span> <code>{preview.folder}</code></p>}
        <Differences preview={preview} />
      </>}
      <div class="actions left">
        <button class="primary" disabled={isBlocked} onClick={() => start(true)}>Add to queue</button>
        {queue && queue.devices.length > 1 && <label class="check">on <input class="count" type="number" min={1} max={queue.devices.length} value={slots} onInput={(event) => setSlots(Number(event.currentTarget.value) || 1)} /> devices</label>}
        <button disabled={isBlocked} onClick={() => start(false)}>Start now</button>
      </div>
      <p class="muted" role="status">{notice}</p>
      {isSweep && <details><summary>Runs and results of the sweep</summary><div class="card-body"><ShortCommand request={{ command: "sweep-table", ...request }} action="Show the table">{(rows) => <SweepTable rows={rows} />}</ShortCommand></div></details>}
      {preview?.submits && <details open><summary>Job for {preview.submits}</summary><div class="card-body"><ShortCommand request={{ command: "submission", ...request }} action="Show the job">{(text) => <pre class="output" tabIndex={0} aria-label="job">{text}</pre>}</ShortCommand><Submission request={request} /></div></details>}
    </div>
  );
}

/** Hands the job over to where the recipe's launch section says; `titanrun launch` follows it from here. */
function Submission({ request }: { request: { target: string; overrides: string[] } }) {
  const [preview, problem, again] = usePreview({ command: "launch", ...request });
  const [failure, setFailure] = useState<string | null>(null);
  const [isAllowed, setAllowed] = useState(false);
  const submit = () => post("/jobs", { digest: preview!.digest, allows_code: isAllowed }).then(again, (refused) => { setFailure(toMessage(refused)); again(); });
  return <>
    {[problem, failure].filter(Boolean).map((one) => <Failure key={one} text={one!} retry={again} />)}
    {preview && <CommandLine shell={preview.shell} label="Command that submits it, and follows it" />}
    {preview && needsConsent([preview]) && <Conditions preview={preview} isAllowed={isAllowed} setAllowed={setAllowed} />}
    <div class="actions left"><button disabled={!preview || (needsConsent([preview]) && !isAllowed)} onClick={submit}>Submit</button></div>
  </>;
}

function Differences({ preview }: { preview: Preview }) {
  if (!preview.last_run || !preview.changes) return null;
  const link = <a href={toUrl("/run", { id: preview.last_run })}>{preview.last_run}</a>;
  if (!preview.changes.length) return <p>No setting differs from the last run, {link}.</p>;
  return <details open={preview.changes.length < 6}><summary>{preview.changes.length} {preview.changes.length === 1 ? "setting differs" : "settings differ"} from the last run, {link}</summary><ChangeList changes={preview.changes} /></details>;
}

function SweepTable({ rows }: { rows: Record<string, any>[] }) {
  if (!rows.length) return <Empty title="No runs yet" />;
  const values = [...new Set(rows.flatMap((row) => Object.keys(row.values ?? {})))];
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Runs of the sweep"><table>
      <thead><tr><th>Run</th><th>State</th>{values.map((name) => <th key={name} class="number">{name}</th>)}<th class="number">Step</th><th class="number">{formatMetricTitle(rows[0]!.metric)}</th></tr></thead>
      <tbody>{rows.map((row) => <tr key={row.run}><td class="wrap">{row.run}</td><td><State state={row.state} /></td>
        {values.map((name) => <td key={name} class="number">{String(row.values[name])}</td>)}<td class="number">{formatWhole(row.step)}</td><td class="number">{formatMetric(row.metric, row.value)}</td></tr>)}</tbody>
    </table></div>
  );
}

function Jobs({ queue, isReadOnly, changed }: { queue: Queue; isReadOnly: boolean; changed: () => void }) {
  const [failure, setFailure] = useState<string | null>(null);
  const running = queue.jobs.filter((job) => job.state === "running");
  const waiting = queue.jobs.filter((job) => job.state === "queued");
  const ended = queue.jobs.filter((job) => job.ended !== null).sort((a, b) => b.ended! - a.ended!);
  const show = (change: Promise<unknown>) => change.then(() => { setFailure(null); changed(); }, (problem) => { setFailure(toMessage(problem)); changed(); });
  const move = (at: number, step: number) => {
    const ids = waiting.map((job) => job.id);
    [ids[at], ids[at + step]] = [ids[at + step]!, ids[at]!];
    void show(post("/queue/order", { ids }));
  };
  return <>
    <div class="controls">
      {queue.devices.length > 0 ? <span>{queue.used} of {queue.slots} devices in use: {queue.devices.map((name) => <span key={name} class="pill">{name}</span>)}</span> : (
        <label>Commands at a time <select disabled={isReadOnly} value={queue.slots} onChange={(event) => show(post("/queue/slots", { slots: Number(event.currentTarget.value) }))}>{Array.from({ length: Math.max(MAX_SLOTS, queue.slots) }, (_, at) => <option key={at} value={at + 1}>{at + 1}</option>)}</select></label>
      )}
    </div>
    {failure && <Failure text={failure} />}
    <p class="hidden" role="status">{running.length} running, {waiting.length} waiting</p>
    {!queue.jobs.length && <Empty title="Nothing waits"><p class="muted">Commands run here one after another, also while this page is closed. They begin while a server of this workspace runs.</p></Empty>}
    {running.length > 0 && <><h3>Running</h3><ul class="jobs">{running.map((job) => <JobItem key={job.id} job={job}>{!isReadOnly && <button class="small" onClick={() => show(remove(`/jobs/${job.id}`))}>Stop</button>}</JobItem>)}</ul></>}
    {waiting.length > 0 && <><h3>Waiting</h3><ol class="jobs">{waiting.map((job, at) => (
      <JobItem key={job.id} job={job} position={at + 1}>{!isReadOnly && <>
        <button class="small" aria-label={`move ${at + 1} up`} disabled={at === 0} onClick={() => move(at, -1)}>↑</button>
        <button class="small" aria-label={`move ${at + 1} down`} disabled={at === waiting.length - 1} onClick={() => move(at, 1)}>↓</button>
        <button class="small" onClick={() => show(remove(`/jobs/${job.id}`))}>Cancel</button></>}
      </JobItem>))}</ol></>}
    {ended.length > 0 && <><h3>Ended</h3><ul class="jobs">{ended.slice(0, 20).map((job) => <JobItem key={job.id} job={job} />)}</ul></>}
  </>;
}

const PREEMPTED = 75;

/** The state of a command in the word for runs: one that was stopped and has saved has not failed. */
const getJobState = (job: Job) => (job.state === "failed" && job.exit_code === PREEMPTED ? "preempted" : job.state);

function JobItem({ job, position, children }: { job: Job; position?: number; children?: ComponentChildren }) {
  const [isOpen, setOpen] = useState(false);
  const [full] = useJob(isOpen ? job.id : null);
  const seconds = job.started && job.ended ? job.ended - job.started : null;
  const facts = [
    job.devices.length ? `on ${job.devices.join(", ")}` : job.slots > 1 ? `${job.slots} slots` : "",
    job.started ? `since ${formatDate(new Date(job.started * 1000).toISOString())}` : "",
    seconds === null ? "" : formatDuration(seconds), getJobState(job) === "failed" ? `exit code ${job.exit_code ?? "unknown"}` : "",
  ].filter(Boolean);
  return (
    <li class="job" data-state={job.state}>
      <div class="job-head">{position && <span class="figure muted">{position}</span>}<State state={getJobState(job)} />
        {job.run && <a href={toUrl("/run", { id: job.run })}>{job.run}</a>}<span class="muted">{facts.join(" · ")}</span><span class="grow" />{children}</div>
      <code class="wrap"><Words text={job.shell} /></code>
      {job.reason && job.state !== "running" && <p class="muted">{job.state}: {job.reason}</p>}
      {job.started && !about.value?.read_only && <details onToggle={(event) => setOpen(event.currentTarget.open)}><summary>Output</summary>{full && <pre class="output" tabIndex={0} aria-label="output">{full.output || "nothing yet"}</pre>}</details>}
    </li>
  );
}
