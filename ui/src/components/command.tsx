// A command as it is shown before it runs, and commands that answer within seconds.
import { type ComponentChildren, Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, toMessage } from "../api";
import { CopyButton, Failure } from "./basics";
import type { Change } from "./recipes";

export interface Request {
  command: string;
  target: string;
  overrides?: string[];
  [option: string]: unknown;
}
export interface Preview {
  shell: string;
  cwd: string;
  digest: string;
  known: string | null;
  env_names: string[];
  warnings: string[];
  programs: { path: string; text: string; kind: string; trusted: boolean }[];
  folder?: string;
  submits?: string | null;
  last_run?: string;
  changes?: Change[];
}
export interface Job {
  id: string;
  command: string;
  shell: string;
  target: string;
  lane: "queue" | "now" | "short";
  slots: number;
  devices: string[];
  state: "queued" | "running" | "done" | "failed" | "cancelled";
  reason: string | null;
  exit_code: number | null;
  created: number;
  started: number | null;
  ended: number | null;
  run: string | null;
  output?: string;
  result?: any;
}
const PAUSE_MS = 250;

/** The preview of a request, why there is none, and a function that asks again. */
export function usePreview(request: Request | null): [Preview | null, string | null, () => void] {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [count, setCount] = useState(0);
  const before = useRef("");
  const key = JSON.stringify(request);
  useEffect(() => {
    setPreview(null);
    if (!request) return setError(null);
    const control = new AbortController();
    const wait = before.current && before.current !== key ? PAUSE_MS : 0;
    before.current = key;
    const timer = setTimeout(() => {
      post<Preview>("/jobs/preview", request, control.signal).then(
        (found) => { setPreview(found); setError(null); },
        (problem) => { if (!control.signal.aborted) setError(toMessage(problem)); },
      );
    }, wait);
    return () => { clearTimeout(timer); control.abort(); };
  }, [key, count]);
  return [preview, error, () => setCount((value) => value + 1)];
}

export const needsConsent = (previews: Preview[]) => previews.some((preview) => preview.programs.some((one) => !one.trusted));

/** A command that breaks between its words: `lr=3e-3` stays whole. */
export const Words = ({ text }: { text: string }) => <>{text.split(" ").map((word, at) => <Fragment key={at}>{at > 0 && " "}<span class="word">{word}</span></Fragment>)}</>;

export function CommandLine({ shell, label, isBrief }: { shell: string; label: string; isBrief?: boolean }) {
  return <div><p class="label">{label}</p><div class={`command${isBrief ? " brief" : ""}`}><code><Words text={shell} /></code><CopyButton text={shell} /></div></div>;
}

/** What a command runs and reads, with the consent that its code needs. */
export function Conditions({ preview, isAllowed, setAllowed }: { preview: Preview; isAllowed: boolean; setAllowed: (on: boolean) => void }) {
  return <>
    {preview.warnings.map((line) => <p key={line} class="notice tone-warning">{line}</p>)}
    {preview.env_names.length > 0 && <p>Reads environment variables: {preview.env_names.map((name) => <code key={name}>{name} </code>)}</p>}
    {preview.programs.length > 0 && (
      <div class="notice tone-warning stack">
        <strong>This recipe runs code that it names</strong>
        <ul>{preview.programs.map((one) => <li key={one.path}><code>{one.path}</code>: {one.text}{one.trusted && " (allowed before)"}</li>)}</ul>
        {needsConsent([preview]) && <label class="check"><input type="checkbox" checked={isAllowed} onChange={(event) => setAllowed(event.currentTarget.checked)} /> I have read it and allow it</label>}
      </div>
    )}
  </>;
}

/** The state of a job, asked for until it has ended. */
export function useJob(id: string | null): [Job | null, string | null] {
  const [job, setJob] = useState<Job | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    setJob(null);
    setError(null);
    if (!id) return;
    let timer: ReturnType<typeof setTimeout>;
    let isGone = false;
    const ask = () => get<Job>(`/jobs/${id}`).then((found) => {
      if (isGone) return;
      setJob(found);
      if (found.state === "queued" || found.state === "running") timer = setTimeout(ask, 300);
    }, (problem) => { if (!isGone) setError(toMessage(problem)); });
    void ask();
    return () => { isGone = true; clearTimeout(timer); };
  }, [id]);
  return [job, error];
}

/** A command that only reads: shown, run on request, and its answer kept until the recipe changes. */
export function ShortCommand(props: { request: Request; action: string; children: (result: any) => ComponentChildren }) {
  const [preview, problem, again] = usePreview(props.request);
  const [started, setStarted] = useState<string | null>(null);
  const [isAllowed, setAllowed] = useState(false);
  const [failure, setFailure] = useState<string | null>(null);
  const [job, error] = useJob(started ?? preview?.known ?? null);
  const key = JSON.stringify(props.request);
  useEffect(() => { setStarted(null); setFailure(null); }, [key]);
  const isBusy = job?.state === "queued" || job?.state === "running";
  const start = async () => {
    setFailure(null);
    try {
      setStarted((await post<Job>("/jobs", { digest: preview!.digest, allows_code: isAllowed })).id);
    } catch (refused) {
      setFailure(toMessage(refused));
    }
    again();
  };
  const text = problem ?? failure ?? error;
  return <>
    {text && <Failure text={text} retry={again} />}
    {preview && <><CommandLine shell={preview.shell} label={`Command, in ${preview.cwd}`} /><Conditions preview={preview} isAllowed={isAllowed} setAllowed={setAllowed} /></>}
    <div class="actions left">
      <button class={job?.result === undefined ? "primary" : ""} disabled={!preview || isBusy || (needsConsent([preview]) && !isAllowed)} onClick={start}>{isBusy ? "Reading …" : job?.result === undefined ? props.action : `${props.action} again`}</button>
    </div>
    <p class="hidden" role="status">{isBusy ? "The command runs" : job ? "The command has ended" : ""}</p>
    {job?.state === "failed" && <><Failure text={`The command has ended with exit code ${job.exit_code}.`} /><pre class="output" tabIndex={0} aria-label="output">{job.output}</pre></>}
    {job?.state === "cancelled" && <Failure text={job.reason ?? "cancelled"} />}
    {job?.result !== undefined && props.children(job.result)}
  </>;
}
