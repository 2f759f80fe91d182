// Shows a command and all that it would run, and starts it exactly as it was shown.
import { useEffect, useState } from "preact/hooks";
import { get, post, toMessage } from "../api";
import { go } from "../router";
import { CopyButton, Dialog, Failure, Loading } from "./basics";

export interface Command {
  command: "train" | "resume" | "fork" | "reproduce";
  target: string;
  step?: number;
}

interface Preview {
  shell: string;
  cwd: string;
  digest: string;
  env_names: string[];
  warnings: string[];
  programs: { path: string; text: string; kind: string; trusted: boolean }[];
}

const TITLES = { train: "Run this recipe", resume: "Resume the run", fork: "Fork: a new run from these weights", reproduce: "Reproduce the run" };

export function LaunchDialog({ command, onClose }: { command: Command; onClose: () => void }) {
  const [text, setText] = useState("");
  const [preview, setPreview] = useState<Preview | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [isAllowed, setIsAllowed] = useState(false);
  const [job, setJob] = useState<any>(null);
  const takesOverrides = command.command !== "reproduce";
  const overrides = text.split("\n").map((line) => line.trim()).filter(Boolean);

  useEffect(() => {
    const control = new AbortController();
    const timer = setTimeout(() => {
      post<Preview>("/jobs/preview", { ...command, overrides }, control.signal).then(
        (found) => { setPreview(found); setError(null); },
        (problem) => { if (!control.signal.aborted) { setPreview(null); setError(toMessage(problem)); } },
      );
    }, text ? 250 : 0);
    return () => { clearTimeout(timer); control.abort(); };
  }, [text]);

  useEffect(() => {
    if (!job || job.state !== "running") return;
    if (job.run && command.command !== "reproduce") {
      onClose();
      go("/run", { id: job.run });
      return;
    }
    const timer = setTimeout(() => get("/job", { id: job.id }).then(setJob, (problem) => setError(toMessage(problem))), 300);
    return () => clearTimeout(timer);
  }, [job]);

  const start = async () => {
    try {
      setJob(await post("/jobs", { digest: preview!.digest, allows_code: isAllowed }));
    } catch (problem) {
      setError(toMessage(problem));
      setPreview(null);
    }
  };
  const unknown = preview?.programs.filter((one) => !one.trusted) ?? [];
  if (job) {
    return (
      <Dialog title={TITLES[command.command]} onClose={onClose} wide>
        <p role="status">{job.state === "running" ? "Started. The command goes on when this page is closed." : `The command has ended with exit code ${job.exit_code}.`}</p>
        <pre class="output" tabIndex={0} aria-label="output">{job.output || " "}</pre>
        <div class="actions"><CopyButton text={job.shell} label="Copy command" /><button onClick={onClose}>Close</button></div>
      </Dialog>
    );
  }
  return (
    <Dialog title={TITLES[command.command]} onClose={onClose} wide>
      {takesOverrides && (
        <label class="field">Overrides, one on each line
          <textarea rows={3} value={text} spellcheck={false} placeholder="training.steps=50" onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      {error && <Failure text={error} />}
      {!preview && !error && <Loading what="the preview" />}
      {preview && <>
        <p class="label">Command, in {preview.cwd}</p>
        <div class="command"><code>{preview.shell}</code><CopyButton text={preview.shell} /></div>
        {preview.warnings.map((line) => <p key={line} class="notice tone-warning">{line}</p>)}
        {preview.env_names.length > 0 && <p>Reads environment variables: {preview.env_names.map((name) => <code key={name}>{name} </code>)}</p>}
        {preview.programs.length > 0 && (
          <div class="notice tone-warning stack">
            <strong>This recipe runs code that it names</strong>
            <ul>{preview.programs.map((one) => <li key={one.path}><code>{one.path}</code>: {one.text}{one.trusted && " (allowed before)"}</li>)}</ul>
            {unknown.length > 0 && <label class="check"><input type="checkbox" checked={isAllowed} onChange={(event) => setIsAllowed(event.currentTarget.checked)} /> I have read it and allow it</label>}
          </div>
        )}
      </>}
      <div class="actions">
        <button onClick={onClose}>Cancel</button>
        <button class="primary" disabled={!preview || (unknown.length > 0 && !isAllowed)} onClick={start}>Start</button>
      </div>
    </Dialog>
  );
}
