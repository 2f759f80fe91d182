// One run: progress, curves, log, problems, checkpoints, settings.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, post, toMessage, toRun } from "../api";
import { Chart, type Curve, type Mark } from "../charts/plot";
import { Announcement, Empty, Failure, Heading, Loading, Progress, State, Tabs, useAnswer } from "../components/basics";
import { CommandLine } from "../components/command";
import { type Command, LaunchDialog } from "../components/launch";
import { ReportDialog } from "../components/report";
import { follow } from "../events";
import { METRIC_UNITS, formatDuration, formatLoss, formatMetricTitle, formatSpeed, formatWhole, isExact } from "../format";
import { place, setQuery, toUrl } from "../router";
import { about } from "../state";
import { AboutRun, Checkpoints, type Details, Problems, Samples, Settings, toShell } from "./run_parts";
import type { RunEntry } from "./runs";

type Series = Record<string, { x: number[]; y: (number | null)[]; nonfinite: number[] }>;
type Tab = "curves" | "log" | "problems" | "checkpoints" | "settings" | "samples" | "about";

const HIDDEN = new Set(["tokens_seen", "time/data_seconds", "validation/loss"]);
const ACTIVE = new Set(["starting", "running"]);

export function RunPage() {
  const { id = "", tab: wanted = "curves" } = place.value.query;
  const [details, error, again] = useAnswer((signal) => get<Details>(toRun(id), {}, signal), id);
  const [live, setLive] = useState<{ state: string; step: number; steps: number | null } | null>(null);
  const [command, setCommand] = useState<Command | null>(null);
  const [notice, setNotice] = useState<string | null>(null);
  const [isReporting, setIsReporting] = useState(false);
  useEffect(() => follow({ [`run:${id}`]: "" }, (name, data) => {
    if (name !== "run.state" || data.id !== id) return;
    setLive(data);
    again();
  }), [id]);
  // what was asked for has come to pass
  useEffect(() => setNotice(null), [live?.state ?? details?.entry.state, details?.checkpoints.length]);
  if (error != null && !details) return <div class="page"><Heading>{id}</Heading><Failure text={toMessage(error)} retry={again} /></div>;
  if (!details) return <div class="page"><Heading>{id}</Heading><Loading what="the run" /></div>;
  const entry = { ...details.entry, ...(live ?? {}) };
  const tell = async (part: string, text: string) => {
    try {
      await post(toRun(id, part), {});
      setNotice(text);
    } catch (problem) {
      setNotice(toMessage(problem));
    }
  };
  const isActive = ACTIVE.has(entry.state);
  const tabs: [Tab, string][] = [["curves", "Curves"], ["log", "Log"],
    ["problems", details.problems.length ? `Problems ${details.problems.length}` : "Problems"], ["checkpoints", `Checkpoints ${details.checkpoints.length}`], ["settings", "Settings"],
    ...(details.has_samples ? [["samples", "Samples"] as [Tab, string]] : []), ["about", "About"]];
  const tab = tabs.find(([name]) => name === wanted)?.[0] ?? "curves";
  return (
    <div class="page">
      <div class="page-head"><Heading>{id}</Heading><State state={entry.state} /><Tags run={id} tags={entry.tags} changed={again} /></div>
      <Announcement text={`The run is ${entry.state}`} />
      <Facts entry={entry} isActive={isActive} />
      {details.starts.length > 0 && <CommandLine shell={toShell(details.starts.at(-1)!.argv)} label="Command" isBrief />}
      <div class="actions left" role="group" aria-label="Actions">
        {!about.value?.read_only && <>
          {isActive ? <>
            <button onClick={() => tell("/stop", "Asked to stop after the current step and save.")}>Stop</button>
            <button onClick={() => tell("/save", "Asked to save after the current step.")}>Save now</button>
          </> : <button onClick={() => setCommand({ command: "resume", target: id })}>Resume</button>}
          {details.checkpoints.length > 0 && <button onClick={() => setCommand({ command: "fork", target: id })}>Fork</button>}
          {!isActive && <button onClick={() => setCommand({ command: "reproduce", target: id })}>Reproduce</button>}
        </>}
        <a class="button" href={toUrl("/compare", { runs: id })}>Compare</a>
        <button onClick={() => setIsReporting(true)}>Report</button>
      </div>
      {notice && <div class="notice" role="status">{notice}<button class="quiet small" onClick={() => setNotice(null)}>Dismiss</button></div>}
      <Tabs tabs={tabs} value={tab} id="run" label="Parts of the run" onChange={(value) => setQuery({ tab: value })} />
      <section role="tabpanel" id="run-panel" aria-labelledby={`run-${tab}`} class="panel">
        {tab === "curves" && <Curves id={id} metrics={details.metrics} saves={details.checkpoints.map((one) => one.step)} resumes={details.resumes} />}
        {tab === "log" && <Log id={id} logs={details.logs} />}
        {tab === "problems" && <Problems problems={details.problems} />}
        {tab === "checkpoints" && <Checkpoints details={details} start={setCommand} id={id} />}
        {tab === "settings" && <Settings id={id} />}
        {tab === "samples" && <Samples id={id} />}
        {tab === "about" && <AboutRun details={details} />}
      </section>
      {command && <LaunchDialog command={command} onClose={() => setCommand(null)} />}
      {isReporting && <ReportDialog runs={[id]} onClose={() => setIsReporting(false)} />}
    </div>
  );
}

function Facts({ entry, isActive }: { entry: RunEntry; isActive: boolean }) {
  const share = entry.steps ? entry.step / entry.steps : 0;
  const left = isActive && share > 0.01 && entry.seconds ? (entry.seconds / share) * (1 - share) : null;
  const facts: [string, string][] = [
    ["Step", entry.steps ? `${formatWhole(entry.step)} / ${formatWhole(entry.steps)}` : formatWhole(entry.step)],
    ["Loss", formatLoss(entry.loss)], ["Best validation", formatLoss(entry.validation)], ["Speed", formatSpeed(entry.tps)],
    left === null ? ["Duration", formatDuration(entry.seconds)] : ["Time left", formatDuration(left)],
  ];
  return <>
    {entry.steps && share < 1 && <Progress value={share} label={`${Math.round(share * 100)} % of the steps`} />}
    <dl class="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
  </>;
}

function Tags({ run, tags, changed }: { run: string; tags: string[]; changed: () => void }) {
  const [text, setText] = useState<string | null>(null);
  const change = (body: object) => post(toRun(run, "/tags"), body).then(() => { setText(null); changed(); }, () => setText(null));
  return (
    <span class="tags">
      {tags.map((tag) => <span key={tag} class="tag">{tag}{!about.value?.read_only && <button class="tag-remove" aria-label={`remove tag ${tag}`} onClick={() => change({ remove: [tag] })}>✕</button>}</span>)}
      {about.value?.read_only ? null : text === null ? <button class="quiet small" onClick={() => setText("")}>+ tag</button> : (
        <form onSubmit={(event) => { event.preventDefault(); void change({ add: [text] }); }}>
          <input class="short" autofocus value={text} aria-label="New tag" onInput={(event) => setText(event.currentTarget.value)} onBlur={() => text || setText(null)} />
        </form>
      )}
    </span>
  );
}

const SPIKES = ["guard/loss_spikes", "guard/grad_norm_spikes"];

function listMarks(series: Series, saves: number[], resumes: number[]): Mark[] {
  const spikes = SPIKES.flatMap((name) => (series[name]?.x ?? []).filter((_, at) => (series[name]!.y[at] ?? 0) > 0));
  return [...saves.map((x): Mark => ({ x, kind: "save" })), ...resumes.map((x): Mark => ({ x, kind: "resume" })), ...[...new Set(spikes)].map((x): Mark => ({ x, kind: "spike" }))];
}

/** The marks in words: what is drawn is not for everybody to see. */
function Marks({ marks }: { marks: Mark[] }) {
  const tell = (kind: Mark["kind"], shape: string, title: string) => {
    const steps = marks.filter((one) => one.kind === kind).map((one) => formatWhole(one.x));
    return steps.length > 0 && <span class={`mark mark-${kind}`}><span class="shape" aria-hidden="true">{shape}</span>{title} {steps.length > 3 ? `${steps.length} times, last at step ${steps.at(-1)}` : `at step ${steps.join(", ")}`}</span>;
  };
  return marks.length > 0 ? <p class="marks muted">{tell("save", "", "saved")}{tell("resume", "", "resumed")}{tell("spike", "▼", "spike")}</p> : null;
}

function Curves({ id, metrics, saves, resumes }: { id: string; metrics: string[]; saves: number[]; resumes: number[] }) {
  const { smooth = "0", log = "" } = place.value.query;
  const shown = useMemo(() => metrics.filter((name) => !HIDDEN.has(name)), [metrics.join()]);
  const [series, setSeries] = useState<Series | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [version, setVersion] = useState(0);
  useEffect(() => {
    let end = () => {};
    let isGone = false;
    const names = metrics.length ? metrics.filter((name) => name !== "tokens_seen") : ["loss"];
    get<{ series: Series; cursor: string }>(toRun(id, "/series"), { metrics: names.join(","), points: 1500 }).then((found) => {
      if (isGone) return;
      setSeries(found.series);
      end = follow({ [`run:${id}`]: found.cursor }, (name, data) => {
        if (data.id !== id) return;
        if (name === "run.reset") setVersion((value) => value + 1);
        if (name === "run.metrics") setSeries((before) => addRows(before ?? {}, data.rows));
      });
    }, (problem) => setError(toMessage(problem)));
    return () => { isGone = true; end(); };
  }, [id, version, metrics.join()]);
  if (error) return <Failure text={error} retry={() => { setError(null); setVersion((value) => value + 1); }} />;
  if (!series) return <Loading what="curves" />;
  const marks = listMarks(series, saves, resumes);
  const names = [...new Set([...shown, ...Object.keys(series).filter((name) => !HIDDEN.has(name))])].filter((name) => series[name]);
  if (!names.length) return <Empty title="No step has been logged yet"><p class="muted">Curves appear here as soon as the run logs its first step.</p></Empty>;
  return <>
    <div class="controls">
      <label>Smoothing <input type="range" min="0" max="0.99" step="0.01" value={smooth} onInput={(event) => setQuery({ smooth: event.currentTarget.value })} /><span class="figure">{Number(smooth).toFixed(2)}</span></label>
      <label class="check"><input type="checkbox" checked={log === "y"} onChange={(event) => setQuery({ log: event.currentTarget.checked ? "y" : undefined })} /> Log scale</label>
      <Marks marks={marks} />
    </div>
    <div class="charts">
      {names.map((name) => <Chart key={name} title={formatMetricTitle(name)} unit={METRIC_UNITS[name]} metric={name} marks={marks}
        curves={buildCurves(name, series)} weight={Number(smooth)} logY={log === "y"} height={230} />)}
    </div>
  </>;
}

function buildCurves(name: string, series: Series): Curve[] {
  const own = { id: name, name: name === "loss" ? "training" : "run", color: "series-1", isExact: isExact(name), ...series[name]! };
  const validation = series["validation/loss"];
  if (name !== "loss" || !validation) return [own];
  return [own, { id: "validation", name: "validation", color: "series-2", dash: [], isExact: true, ...validation }];
}

/** Add rows of the event stream: the last row of a step counts, and steps never go back. */
function addRows(before: Series, rows: Record<string, number | string | null>[]): Series {
  const found = { ...before };
  for (const row of rows) {
    const step = row.step as number;
    for (const [name, given] of Object.entries(row)) {
      if (name === "step" || name === "tokens_seen") continue;
      const old = found[name] ?? { x: [], y: [], nonfinite: [] };
      const later = old.x.findIndex((x) => x >= step);
      const end = later < 0 ? old.x.length : later;
      const isFinite = typeof given === "number";
      found[name] = {
        x: [...old.x.slice(0, end), step],
        y: [...old.y.slice(0, end), isFinite ? given : null],
        nonfinite: [...old.nonfinite.filter((x) => x < step), ...(isFinite ? [] : [step])],
      };
    }
  }
  return found;
}

const LEVEL = /^\S+ \S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) /;
function Log({ id, logs }: { id: string; logs: string[] }) {
  const [rank, setRank] = useState(logs[0] ?? "rank-0");
  const [text, setText] = useState<string | null>(null);
  const [from, setFrom] = useState(0);
  const [level, setLevel] = useState("all");
  const [isFollowing, setIsFollowing] = useState(true);
  const [error, setError] = useState<string | null>(null);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    let end = () => {};
    let isGone = false;
    get(toRun(id, "/log"), { rank }).then((page) => {
      if (isGone) return;
      setText(page.text);
      setFrom(page.from);
      if (rank === logs[0]) end = follow({ [`log:${id}`]: String(page.to) }, (name, data) => {
        if (name === "run.log" && data.id === id) setText((before) => (before ?? "") + data.text);
      });
    }, (problem) => setError(toMessage(problem)));
    return () => { isGone = true; end(); };
  }, [id, rank]);
  useEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, isFollowing, level]);
  if (!logs.length) return <Empty title="The run has no log yet" />;
  if (error) return <Failure text={error} />;
  if (text === null) return <Loading what="the log" />;
  const earlier = async () => {
    const start = Math.max(0, from - 200_000);
    const page = await get(toRun(id, "/log"), { rank, from: start });
    const cut = start === 0 ? page.text : page.text.slice(page.text.indexOf("\n") + 1);
    // up to where the shown part begins: the page may hold more than that
    const bytes = new TextEncoder().encode(cut);
    setText(new TextDecoder().decode(bytes.slice(0, Math.max(0, bytes.length - Math.max(0, page.to - from)))) + text);
    setFrom(start);
    setIsFollowing(false);
  };
  const lines = text.split("\n").filter((line) => level === "all" || /WARNING|ERROR|CRITICAL/.test(line.match(LEVEL)?.[1] ?? ""));
  return <>
    <div class="controls">
      {logs.length > 1 && <label>Rank <select value={rank} onChange={(event) => { setText(null); setRank(event.currentTarget.value); }}>{logs.map((name) => <option key={name}>{name}</option>)}</select></label>}
      <label>Show <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}><option value="all">all lines</option><option value="bad">warnings and errors</option></select></label>
      <label class="check"><input type="checkbox" checked={isFollowing} onChange={(event) => setIsFollowing(event.currentTarget.checked)} /> Follow</label>
      {from > 0 && <button class="small" onClick={earlier}>Earlier lines</button>}
    </div>
    <pre class="log" ref={box} tabIndex={0} aria-label="log">{lines.length > 1 || lines[0] ? lines.map((line, at) => {
      const found = line.match(LEVEL)?.[1];
      const tone = found === "WARNING" ? "tone-warning" : found === "ERROR" || found === "CRITICAL" ? "tone-error" : "";
      return <span key={at} class={tone}>{line}{"\n"}</span>;
    }) : "no such lines"}</pre>
  </>;
}
