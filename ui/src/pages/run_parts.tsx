// Parts of a run: problems, checkpoints, settings, samples, and where it ran.
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { get, toMessage, toRun } from "../api";
import { CommandLine } from "../components/command";
import { Breakable, Empty, Failure, Loading, useAnswer } from "../components/basics";
import type { Command } from "../components/launch";
import { formatBytes, formatDate, formatLoss, formatValue, formatWhole } from "../format";
import { toUrl } from "../router";
import { about } from "../state";
import type { RunEntry } from "./runs";

export interface Details {
  entry: RunEntry;
  starts: { time: string; argv: string[]; changes: string[] }[];
  decided: Record<string, unknown>;
  machine: Record<string, unknown>;
  packages: Record<string, string>;
  git: Record<string, unknown>;
  lineage: { parent: { id: string | null; step: number; name: string } | null; children: string[]; stages: { id: string | null; name: string }[] };
  problems: { time: string; level: string; log: string; text: string; count: number }[];
  checkpoints: { step: number; bytes?: number; saved_at?: string; holds?: string; validation_loss?: number | null; damage?: string }[];
  resumes: number[];
  metrics: string[];
  logs: string[];
  has_samples: boolean;
}
export function Problems({ problems }: { problems: Details["problems"] }) {
  if (!problems.length) return <Empty title="No warnings and no errors in the logs" />;
  return (
    <table class="met">
      <thead><tr><th>First at</th><th>Level</th><th>Log</th><th>What</th><th class="number">Times</th></tr></thead>
      <tbody>{problems.map((one, at) => <tr key={at}><td class="nowrap">{one.time}</td><td class={one.level === "warning" ? "tone-warning" : "tone-error"}>{one.level}</td><td class="nowrap">{one.log}</td><td class="wrap">{one.text}</td><td class="number">{one.count}</td></tr>)}</tbody>
    </table>
  );
}

export function Checkpoints({ details, id, start }: { details: Details; id: string; start: (command: Command) => void }) {
  const best = Math.min(...details.checkpoints.map((one) => one.validation_loss ?? Infinity));
  if (!details.checkpoints.length) return <Empty title="No checkpoints" />;
  return (
    <table class="checkpoints">
      <thead><tr><th class="number">Step</th><th class="number">Size</th><th class="number">Validation loss</th><th>Saved at</th><th>State</th><th><span class="hidden">Actions</span></th></tr></thead>
      <tbody>{details.checkpoints.map((one) => (
        <tr key={one.step}>
          <td class="number"><span class="narrow-only">step </span>{formatWhole(one.step)}</td><td class="number">{formatBytes(one.bytes)}</td>
          <td class="number">{formatLoss(one.validation_loss)}{one.validation_loss === best && <span class="pill tone-ok">best</span>}</td>
          <td class="nowrap" title={one.saved_at}>{formatDate(one.saved_at)}</td>
          <td>{one.damage ? <span class="tone-error">damaged: {one.damage}</span> : one.holds === "everything" ? "whole state" : "weights only"}</td>
          <td class="row-actions">{!about.value?.read_only && !one.damage && <>
            <button class="small" onClick={() => start({ command: "fork", target: id, step: one.step })}>Fork</button>
            <a class="button small" href={toUrl("/chat", { left: `${id}@${one.step}` })}>Chat</a>
            <button class="small" onClick={() => start({ command: "export", target: id, step: one.step })}>Export</button>
            <button class="small" onClick={() => start({ command: "eval", target: id, step: one.step })}>Evaluate</button>
            <button class="small" onClick={() => start({ command: "verify", target: id, step: one.step })}>Verify</button></>}</td>
        </tr>))}</tbody>
    </table>
  );
}

export interface Setting { path: string; value: unknown; source?: string; file?: string; line?: number; column?: number; shadowed?: string[] }

/** Where a value was written: a line of the shown file, a place in another one, or who chose it. */
export function formatSource(one: Setting, shown?: string): string {
  if (!one.file) return one.source ?? "default";
  if (one.source === "override") return "override";
  return one.file === shown ? `line ${one.line}` : `${shown ? one.file.split("/").at(-1) : one.file}:${one.line}`;
}

export function Settings({ id }: { id: string }) {
  const [answer, error] = useAnswer((signal) => get<{ settings: Setting[] }>(toRun(id, "/settings"), {}, signal), id);
  const [filter, setFilter] = useState("");
  const [isWritten, setIsWritten] = useState(true);
  if (error != null) return <Failure text={toMessage(error)} />;
  if (!answer) return <Loading what="settings" />;
  const shown = answer.settings.filter((one) => (!isWritten || one.file || (one.source !== "default" && one.source !== "decided")) && one.path.includes(filter));
  return <>
    <div class="controls">
      <input data-filter type="search" value={filter} placeholder="optimizer.lr" aria-label="Filter settings" onInput={(event) => setFilter(event.currentTarget.value)} />
      <label class="check"><input type="checkbox" checked={isWritten} onChange={(event) => setIsWritten(event.currentTarget.checked)} /> Only written values</label>
    </div>
    <SettingsTable settings={shown} />
  </>;
}

export function SettingsTable({ settings, open, file }: { settings: Setting[]; open?: (one: Setting) => void; file?: string }) {
  if (!settings.length) return <Empty title="No setting matches" />;
  return (
    <table class="settings">
      <thead><tr><th>Setting</th><th>Value</th><th>From</th></tr></thead>
      <tbody>{settings.map((one) => (
        <tr key={one.path}><td><code><Breakable text={one.path} /></code></td><td><code><Breakable text={formatValue(one.value)} /></code></td>
          <td>{open && one.file && one.source !== "override" ? <button class="link" title={`${one.file}:${one.line}`} onClick={() => open(one)}><span><Breakable text={formatSource(one, file)} /></span></button> : <span class={one.file ? "" : "muted"}><Breakable text={formatSource(one)} /></span>}</td></tr>))}</tbody>
    </table>
  );
}

export function Samples({ id }: { id: string }) {
  const [answer, error] = useAnswer((signal) => get<{ samples: { step: number; prompt: string; text: string }[] }>(toRun(id, "/samples"), {}, signal), id);
  if (error != null) return <Failure text={toMessage(error)} />;
  if (!answer) return <Loading what="samples" />;
  const prompts = [...new Set(answer.samples.map((one) => one.prompt))];
  const steps = [...new Set(answer.samples.map((one) => one.step))];
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="samples"><table>
      <thead><tr><th class="number">Step</th>{prompts.map((prompt) => <th key={prompt} class="wrap">{prompt}</th>)}</tr></thead>
      <tbody>{steps.map((step) => <tr key={step}><td class="number">{formatWhole(step)}</td>
        {prompts.map((prompt) => <td key={prompt} class="wrap sample">{answer.samples.find((one) => one.step === step && one.prompt === prompt)?.text}</td>)}</tr>)}</tbody>
    </table></div>
  );
}

function flatten(data: Record<string, unknown>, before = ""): [string, string][] {
  return Object.entries(data).flatMap(([name, value]): [string, string][] => {
    const label = `${before}${name}`.replaceAll("_", " ");
    if (value && typeof value === "object" && !Array.isArray(value)) return flatten(value as Record<string, unknown>, `${label} `);
    return value === null || value === "" ? [] : [[label, formatValue(value)]];
  });
}

/** Words as a shell takes them. */
export const toShell = (words: string[]) => words.map((word) => (/^[\w./:=,+@%-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");

export function AboutRun({ details }: { details: Details }) {
  const { parent, children, stages } = details.lineage;
  // the machine and what was decided both name the device
  const facts = new Map([...flatten(details.machine), ...flatten(details.decided), ...flatten(details.git, "git ").filter(([name]) => name !== "git diff")]);
  return (
    <div class="columns">
      <div>
        <h2>Starts</h2>
        {details.starts.map((one) => <div key={one.time} class="start" title={one.time}><CommandLine shell={toShell(one.argv)} label={formatDate(one.time)} />
          {one.changes.length > 0 && <p class="muted">changed: {one.changes.join("; ")}</p>}</div>)}
        <h2>Lineage</h2>
        {stages.length > 0 && <p>Stages: {stages.map((one, at) => <Fragment key={one.name}>{at > 0 && <span class="muted"> → </span>}{one.id === details.entry.id ? <strong>{one.name}</strong> : one.id ? <a href={toUrl("/run", { id: one.id })}>{one.name}</a> : <span class="muted">{one.name} (not begun)</span>}</Fragment>)}</p>}
        {!parent && !children.length && !stages.length && <p class="muted">It began from no other run, and no run began from it.</p>}
        {parent && <p>Began from step {parent.step} of {parent.id ? <a href={toUrl("/run", { id: parent.id })}>{parent.id}</a> : parent.name}</p>}
        {children.length > 0 && <p>Began from it: {children.map((id) => <a key={id} href={toUrl("/run", { id })}>{id} </a>)}</p>}
      </div>
      <div>
        <h2>Machine</h2>
        <dl class="pairs">{[...facts].map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
        <details><summary>{Object.keys(details.packages).length} packages</summary>
          <dl class="pairs">{Object.entries(details.packages).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl></details>
      </div>
    </div>
  );
}
