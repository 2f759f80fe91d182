// The HTML report of runs: one file, made by the server and saved by the browser.
import { useState } from "preact/hooks";
import { get, toMessage } from "../api";
import { Dialog, Failure } from "./basics";
import { CommandLine } from "./command";

export function ReportDialog({ runs, onClose }: { runs: string[]; onClose: () => void }) {
  const [failure, setFailure] = useState<string | null>(null);
  const [isBusy, setIsBusy] = useState(false);
  const name = `${runs.length === 1 ? runs[0]!.split("/").at(-1) : "runs"}.html`;
  const save = async () => {
    setIsBusy(true);
    setFailure(null);
    try {
      const { text } = await get<{ text: string }>(`/report?${new URLSearchParams(runs.map((run) => ["run", run]))}`);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/html" }));
      link.download = name;
      link.click();
      URL.revokeObjectURL(link.href);
    } catch (problem) {
      setFailure(toMessage(problem));
    }
    setIsBusy(false);
  };
  return (
    <Dialog title={runs.length === 1 ? "Report of the run" : `Report of ${runs.length} runs`} onClose={onClose} wide>
      <p>One HTML file without scripts, to send or to keep: results, curves, settings with their origins, checkpoints, lineage and problems. Absolute paths, host names and the list of packages are left out.</p>
      <CommandLine shell={`titanrun report ${runs.map((run) => `runs/${run}`).join(" ")} -o ${name}`} label="The same in a terminal" />
      {failure && <Failure text={failure} retry={save} />}
      <div class="actions"><button onClick={onClose}>Close</button><button class="primary" disabled={isBusy} onClick={save}>{isBusy ? "Writing …" : `Download ${name}`}</button></div>
    </Dialog>
  );
}
