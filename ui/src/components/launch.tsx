// Shows a command and all that it would run, and starts it exactly as it was shown.
import { useEffect, useState } from "preact/hooks";
import { post, toMessage } from "../api";
import { go } from "../router";
import { CopyButton, Dialog, Failure, Loading } from "./basics";
import { CommandLine, Conditions, type Job, needsConsent, useJob, usePreview } from "./command";
import { splitOverrides } from "./recipes";

export interface Command {
  command: "train" | "resume" | "fork" | "reproduce" | "eval" | "export" | "verify";
  target: string;
  step?: number;
  overrides?: string;
}

const TITLES = {
  train: "Run this recipe", resume: "Resume the run", fork: "Fork: a new run from these weights", reproduce: "Reproduce the run",
  eval: "Evaluate the checkpoint", export: "Export the weights", verify: "Verify every byte of the checkpoint",
};
const FORMATS: [string, string, string][] = [["hf", "transformers", ""], ["safetensors", "safetensors", ""], ["torch", "torch", ".pt"], ["gguf", "GGUF for llama.cpp", ".gguf"]];
const WITHOUT_OVERRIDES = ["reproduce", "export", "verify"];

export function LaunchDialog({ command, onClose }: { command: Command; onClose: () => void }) {
  const [text, setText] = useState(command.overrides ?? "");
  const [isAllowed, setAllowed] = useState(false);
  const [started, setStarted] = useState<string | null>(null);
  const [failure, setFailure] = useState<string | null>(null);
  const [format, setFormat] = useState(FORMATS[0]!);
  const [out, setOut] = useState<string | null>(null);
  const target = out ?? `${command.target.split("/").at(-1)}-step-${command.step}${format[2]}`;
  const [preview, problem, again] = usePreview({ ...command, overrides: splitOverrides(text), ...(command.command === "export" ? { format: format[0], out: target } : {}) });
  const [job, error] = useJob(started);
  useEffect(() => {
    if (!job?.run || job.state !== "running" || command.command === "reproduce") return;
    onClose();
    go("/run", { id: job.run });
  }, [job]);

  const start = async (queue: boolean) => {
    setFailure(null);
    try {
      const found = await post<Job>("/jobs", { digest: preview!.digest, allows_code: isAllowed, queue });
      if (queue) { onClose(); go("/launch"); } else setStarted(found.id);
    } catch (refused) {
      setFailure(toMessage(refused));
      again();
    }
  };
  const faults = [problem, failure, error].filter(Boolean);
  const isBlocked = !preview || (needsConsent([preview]) && !isAllowed);
  if (job) {
    return (
      <Dialog title={TITLES[command.command]} onClose={onClose} wide>
        <p role="status">{job.exit_code === null ? "Started. The command goes on when this page is closed." : `The command has ended with exit code ${job.exit_code}.`}</p>
        <pre class="output" tabIndex={0} aria-label="output">{job.output || " "}</pre>
        <div class="actions"><CopyButton text={job.shell} label="Copy command" /><button onClick={onClose}>Close</button></div>
      </Dialog>
    );
  }
  return (
    <Dialog title={TITLES[command.command]} onClose={onClose} wide>
      {command.command === "export" && <div class="pair">
        <label class="field">Format<select value={format[0]} onChange={(event) => { setFormat(FORMATS.find(([name]) => name === event.currentTarget.value)!); setOut(null); }}>{FORMATS.map(([name, title]) => <option key={name} value={name}>{title}</option>)}</select></label>
        <label class="field">New file or folder in the workspace<input value={target} spellcheck={false} onInput={(event) => setOut(event.currentTarget.value)} /></label></div>}
      {!WITHOUT_OVERRIDES.includes(command.command) && (
        <label class="field">Overrides, one on each line
          <textarea rows={3} value={text} spellcheck={false} placeholder={command.command === "eval" ? "evaluation.tasks=[{name: loss}]" : "training.steps=50"} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      {faults.map((one) => <Failure key={one} text={one!} />)}
      {!preview && !faults.length && <Loading what="the preview" />}
      {preview && <><CommandLine shell={preview.shell} label={`Command, in ${preview.cwd}`} /><Conditions preview={preview} isAllowed={isAllowed} setAllowed={setAllowed} /></>}
      <div class="actions">
        <button onClick={onClose}>Cancel</button>
        {command.command !== "verify" && <button disabled={isBlocked} onClick={() => start(true)}>Add to queue</button>}
        <button class="primary" disabled={isBlocked} onClick={() => start(false)}>Start</button>
      </div>
    </Dialog>
  );
}
