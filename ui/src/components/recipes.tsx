// Recipes of the workspace, and differences between two of them.
import { useEffect } from "preact/hooks";
import { get } from "../api";
import { formatValue } from "../format";
import { setQuery } from "../router";
import { useAnswer } from "./basics";

export interface FileEntry { path: string; kind: "recipe" | "part" | "sweep" | "shipped"; title: string }
export interface Change { path: string; kind: string; a: unknown; b: unknown; class: string; resume: boolean; a_origin: string | null; b_origin: string | null }

export const KINDS: [FileEntry["kind"], string][] = [["recipe", "Recipes"], ["part", "Parts"], ["sweep", "Sweeps"], ["shipped", "Shipped"]];
const CLASSES: Record<string, string> = { numerics: "changes the result", performance: "changes speed or memory", bookkeeping: "changes neither" };

export function FileOptions({ files }: { files: FileEntry[] }) {
  return <>{KINDS.map(([kind, title]) => {
    const found = files.filter((one) => one.kind === kind);
    return found.length > 0 && <optgroup key={kind} label={title}>{found.map((one) => <option key={one.path} value={one.path}>{one.path.replace("shipped:", "")}</option>)}</optgroup>;
  })}</>;
}

export function ChangeList({ changes }: { changes: Change[] }) {
  return (
    <ul class="changes">{changes.map((one) => (
      <li key={one.path}><code>{one.path}</code>
        <p><del>{one.kind === "added" ? "not set" : formatValue(one.a)}</del> → <ins>{one.kind === "removed" ? "not set" : formatValue(one.b)}</ins></p>
        <p class="muted">{CLASSES[one.class] ?? one.class}; a resume {one.resume ? "allows" : "refuses"} it</p></li>))}</ul>
  );
}

export const splitOverrides = (text: string) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Whether a line is an override as the command line takes it; the server has the last word. */
export const isOverride = (line: string) => /^[A-Za-z_][\w.\-[\]]*(\+=|-=|=|!$)/.test(line);

/** Chooses a recipe and its overrides; both are kept in the address. */
export function RecipePicker({ file, set, kinds }: { file: string; set: string; kinds: FileEntry["kind"][] }) {
  const [answer] = useAnswer((signal) => get<{ files: FileEntry[] }>("/files", {}, signal), "files");
  const files = (answer?.files ?? []).filter((one) => kinds.includes(one.kind));
  const own = files.filter((one) => one.kind !== "shipped");
  const only = !file && own.length === 1 ? own[0]!.path : null;
  useEffect(() => { if (only) setQuery({ file: only }); }, [only]);
  return <>
    <label class="field">Recipe
      <select value={file} onChange={(event) => setQuery({ file: event.currentTarget.value, row: undefined })}><option value="">choose</option><FileOptions files={files} /></select></label>
    <label class="field">Overrides, one on each line
      <textarea rows={3} value={set} spellcheck={false} placeholder="training.steps=50" onInput={(event) => setQuery({ set: event.currentTarget.value })} /></label>
  </>;
}
