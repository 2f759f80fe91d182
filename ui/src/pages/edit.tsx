// Recipes: the text is the only source, and every control is an edit of it.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, get, post, send, toMessage } from "../api";
import { Chart } from "../charts/plot";
import { Dialog, Empty, Failure, Heading, Loading, Tabs, useAnswer } from "../components/basics";
import { type Command, LaunchDialog } from "../components/launch";
import { type Change, ChangeList, type FileEntry, FileOptions, KINDS } from "../components/recipes";
import type { Problem, RecipeEditor } from "../editor";
import { follow } from "../events";
import { formatCount, formatWhole } from "../format";
import { go, place, setQuery } from "../router";
import { about } from "../state";
import { type Setting, SettingsTable } from "./run";
import type { RunEntry } from "./runs";

interface Buffer { path: string; text: string; disk: string; sha256: string | null; writable: boolean; reason: string | null; newline: string }
interface RunFacts { name: string; model: string; steps: number | null; epochs: number | null; tokens_per_step: number | null; tokens: number | null; ranks: number | null }
interface Examined { version: number; problems: Problem[]; is_resolved: boolean; runs: RunFacts[]; resolved?: Setting[][]; schedule?: ({ x: number[]; y: number[] } | null)[] }
type Panel = "problems" | "values" | "difference" | "schedule";

const PAUSE_MS = 120;
const KEY = "titanrun-buffers";

/** Open files survive a change of the page, and unsaved ones a reload. */
const buffers = new Map<string, Buffer>();
for (const one of JSON.parse(sessionStorage.getItem(KEY) ?? "[]") as Buffer[]) buffers.set(one.path, one);
const isDirty = (buffer: Buffer) => buffer.text !== buffer.disk;
const keepBuffers = () => sessionStorage.setItem(KEY, JSON.stringify([...buffers.values()].filter(isDirty)));
addEventListener("beforeunload", keepBuffers);

export function EditPage() {
  const { file = "", line = "", panel = "problems" } = place.value.query;
  const [files, error, listAgain] = useAnswer((signal) => get<{ files: FileEntry[] }>("/files", {}, signal), "files");
  const [, redraw] = useState(0);
  const [failure, setFailure] = useState<string | null>(null);
  const [examined, setExamined] = useState<Examined | null>(null);
  const [changedOutside, setChangedOutside] = useState<{ text: string; sha256: string } | null>(null);
  const [isComparing, setIsComparing] = useState(false);
  const [command, setCommand] = useState<Command | null>(null);
  const [newName, setNewName] = useState<string | null>(null);
  const [indents, setIndents] = useState(false);
  const [editor, setEditor] = useState<RecipeEditor | null>(null);
  const holder = useRef<HTMLDivElement>(null);
  const current = buffers.get(file);
  const asked = useRef({ version: 0, control: new AbortController(), timer: 0 as unknown as ReturnType<typeof setTimeout> });
  const wanted = panel === "values" ? ["resolved"] : panel === "schedule" ? ["schedule"] : [];
  const latest = useRef({ file, wanted });
  latest.current = { file, wanted };

  const examine = (wait: number) => {
    const state = asked.current;
    clearTimeout(state.timer);
    state.control.abort();
    const control = (state.control = new AbortController());
    const version = ++state.version;
    state.timer = setTimeout(() => {
      const { file: path, wanted: want } = latest.current;
      const buffer = buffers.get(path);
      if (!buffer) return;
      post<Examined>("/examine", { path, text: buffer.text, version, want }, control.signal).then((found) => {
        if (found.version !== state.version) return;
        editorRef.current?.setProblems(found.problems);
        setExamined(found);
        setFailure(null);
      }, (problem) => control.signal.aborted || setFailure(toMessage(problem)));
    }, wait);
  };
  const save = async () => {
    const buffer = buffers.get(latest.current.file);
    if (!buffer?.writable || !isDirty(buffer)) return;
    const text = buffer.text;
    try {
      const headers: Record<string, string> = buffer.sha256 ? { "If-Match": `"${buffer.sha256}"` } : { "If-None-Match": "*" };
      const found = await send("PUT", `/file?${new URLSearchParams({ path: buffer.path })}`, { text }, { headers });
      buffer.disk = text;
      buffer.sha256 = found.sha256;
      setChangedOutside(null);
      keepBuffers();
      redraw((count) => count + 1);
      listAgain();
    } catch (problem) {
      if (problem instanceof ApiError && problem.status === 412 && problem.data.sha256) {
        setChangedOutside(problem.data);
        setIsComparing(true);
      } else setFailure(toMessage(problem));
    }
  };
  const launch = async () => {
    const path = latest.current.file;
    await save();
    const buffer = buffers.get(path);
    if (buffer && !isDirty(buffer) && !about.value?.read_only) setCommand({ command: "train", target: path });
  };
  const editorRef = useRef<RecipeEditor | null>(null);
  const handlers = useRef({ save, launch });
  handlers.current = { save, launch };

  useEffect(() => {
    let isGone = false;
    void import("../editor").then(({ RecipeEditor: Editor }) => {
      if (isGone || !holder.current) return;
      editorRef.current = new Editor(holder.current, {
        change: (text) => {
          const buffer = buffers.get(latest.current.file);
          if (!buffer) return;
          const before = isDirty(buffer);
          buffer.text = text;
          if (before !== isDirty(buffer)) redraw((count) => count + 1);
          examine(PAUSE_MS);
        },
        save: () => void handlers.current.save(),
        launch: () => void handlers.current.launch(),
        open: (path, at) => go("/edit", { ...place.value.query, file: path, line: String(at) }),
        tabMode: setIndents,
      });
      setEditor(editorRef.current);
    });
    return () => { isGone = true; editorRef.current?.view.destroy(); editorRef.current = null; keepBuffers(); };
  }, []);

  useEffect(() => {
    if (!file && files) {
      const first = files.files.find((one) => one.kind === "recipe") ?? files.files.find((one) => one.path === "shipped:llama3_debug.yaml");
      if (first) setQuery({ file: first.path });
    }
  }, [file, files]);

  useEffect(() => {
    if (!file || !editor) return;
    setExamined(null);
    setFailure(null);
    setChangedOutside(null);
    let isGone = false;
    const show = (buffer: Buffer) => {
      editor.show(file, buffer.text, buffer.writable);
      if (line) editor.goToLine(Number(line));
      redraw((count) => count + 1);
      examine(0);
    };
    const kept = buffers.get(file);
    if (kept && kept.sha256 === null) return show(kept);
    get("/file", { path: file }).then((found) => {
      if (isGone) return;
      if (kept && isDirty(kept)) {
        if (kept.sha256 !== found.sha256) setChangedOutside(found);
        show(kept);
        return;
      }
      const buffer: Buffer = { path: file, disk: found.text, ...found };
      buffers.set(file, buffer);
      show(buffer);
    }, (problem) => {
      if (!isGone) setFailure(toMessage(problem));
    });
    return () => { isGone = true; };
  }, [file, editor]);
  useEffect(() => { if (line && editor?.path === file) editor.goToLine(Number(line)); }, [line]);
  useEffect(() => { if (current) examine(0); }, [panel]);

  useEffect(() => {
    if (!current || !current.sha256 || file.startsWith("shipped:")) return;
    return follow({ [`file:${file}`]: current.sha256 }, (name, data) => {
      const buffer = buffers.get(file);
      if (name !== "file.changed" || data.path !== file || !buffer || data.sha256 === buffer.sha256) return;
      if (data.sha256 === "gone") return setFailure("The file was removed from the disk. Save writes it again.");
      get("/file", { path: file }).then((found) => {
        if (found.sha256 === buffer.sha256) return;
        if (isDirty(buffer)) setChangedOutside(found);
        else takeOver(buffer, found);
      }, () => {});
    });
  }, [file, current?.sha256]);

  const takeOver = (buffer: Buffer, found: { text: string; sha256: string }) => {
    buffer.disk = buffer.text = found.text;
    buffer.sha256 = found.sha256;
    setChangedOutside(null);
    editorRef.current?.replace(found.text);
    examine(0);
    redraw((count) => count + 1);
  };
  const fixAll = async () => {
    if (!current) return;
    const found = await post("/fix-all", { path: file, text: current.text });
    if (found.text !== current.text) editor?.replace(found.text);
  };
  const copyTo = (path: string) => {
    if (!current) return;
    buffers.set(path, { path, text: current.text.replace(/^# titanrun resolved recipe.*\n/, ""), disk: "", sha256: null, writable: true, reason: null, newline: "lf" });
    setNewName(null);
    setQuery({ file: path });
  };
  const problems = examined?.problems ?? [];
  const canFix = problems.some((one) => one.actions.some((action) => action.preferred));
  const withheld = problems.filter((one) => one.message.startsWith("plug-in '") && one.message.includes("is not imported: it would"));
  const allowPlugins = () => post("/plugins", { plugins: withheld.map((one) => one.message.split("'")[1]) }).then(() => examine(0), (problem) => setFailure(toMessage(problem)));
  return (
    <div class="edit">
      <aside class="files"><Files files={files?.files ?? []} current={file} />{error != null && <Failure text={toMessage(error)} retry={listAgain} />}</aside>
      <section class="editor" aria-label="Editor">
        <div class="editor-head">
          <Heading>{file.split("/").at(-1)?.replace("shipped:", "") || "Edit"}{current && isDirty(current) && <span class="dirty" title="not saved"> ●<span class="hidden"> not saved</span></span>}</Heading>
          <span class="muted reason">{current?.reason && `read-only: ${current.reason}`}</span>
          <span class="grow" />
          {current && !current.writable && !about.value?.read_only && <button onClick={() => setNewName(suggestName(file))}>Start from this</button>}
          {current?.writable && <>
            {canFix && <button onClick={fixAll}>Fix all</button>}
            <button disabled={!isDirty(current)} onClick={() => void save()}>Save</button>
            <button class="primary" disabled={problems.some((one) => one.severity === "error")} onClick={() => void launch()}>Run …</button>
          </>}
        </div>
        <OpenFiles current={file} redraw={() => redraw((count) => count + 1)} />
        {changedOutside && (
          <div class="notice tone-warning" role="alert"><span>The file has changed on the disk.</span><span class="grow" />
            <button class="small" onClick={() => takeOver(current!, changedOutside)}>Reload</button>
            <button class="small" onClick={() => { current!.disk = changedOutside.text; current!.sha256 = changedOutside.sha256; setChangedOutside(null); redraw((count) => count + 1); }}>Keep mine</button>
            <button class="small" onClick={() => setIsComparing(true)}>Show difference</button></div>
        )}
        {failure && <Failure text={failure} retry={() => examine(0)} />}
        <div class="text" ref={holder} />
        <p class="status-bar muted"><span>{indents ? "Tab indents" : "Tab leaves the editor"} (Ctrl M)</span>{current?.newline === "crlf" && <span>CRLF</span>}<Size runs={examined?.runs ?? []} /></p>
      </section>
      <section class="side" aria-label="Examination">
        <Tabs id="side" label="Examination" value={panel as Panel} onChange={(value) => setQuery({ panel: value })}
          tabs={[["problems", problems.length ? `Problems ${problems.length}` : "Problems"], ["values", "Values"], ["difference", "Difference"], ["schedule", "Schedule"]]} />
        <div role="tabpanel" id="side-panel" aria-labelledby={`side-${panel}`} class="side-body">
          <p class="hidden" role="status">{examined ? `${problems.length} problems` : ""}</p>
          {withheld.length > 0 && !about.value?.read_only && <div class="notice tone-warning stack"><span>The plug-ins of this recipe run installed code.</span><button onClick={allowPlugins}>Allow them in this workspace</button></div>}
          {panel === "problems" && <ProblemList examined={examined} editor={editor} isWritable={!!current?.writable} />}
          {panel === "values" && <Values examined={examined} file={file} />}
          {panel === "difference" && current && <Difference buffer={current} examined={examined} files={files?.files ?? []} />}
          {panel === "schedule" && <Schedule examined={examined} />}
        </div>
      </section>
      {command && <LaunchDialog command={command} onClose={() => setCommand(null)} />}
      {newName !== null && <NameDialog name={newName} onClose={() => setNewName(null)} onDone={copyTo} />}
      {isComparing && changedOutside && current && <MergeDialog disk={changedOutside.text} mine={current.text} onClose={() => setIsComparing(false)} />}
    </div>
  );
}

const suggestName = (file: string) => `${file.startsWith("shipped:") ? "recipes/" : ""}my_${file.split(/[/:]/).at(-1)}`;

function Files({ files, current }: { files: FileEntry[]; current: string }) {
  const [filter, setFilter] = useState("");
  const shown = files.filter((one) => one.path.includes(filter) || one.title.includes(filter));
  return <>
    <input data-filter type="search" value={filter} placeholder="Filter files" aria-label="Filter files" onInput={(event) => setFilter(event.currentTarget.value)} />
    <label class="file-select"><span class="hidden">File</span>
      <select value={current} onChange={(event) => go("/edit", { file: event.currentTarget.value })}>
        <FileOptions files={files} />
      </select></label>
    <nav aria-label="Files" class="file-list">
      {KINDS.map(([kind, title]) => {
        const found = shown.filter((one) => one.kind === kind);
        if (!found.length) return null;
        const isOpen = kind !== "shipped" || !!filter || current.startsWith("shipped:") || !files.some((one) => one.kind === "recipe");
        return <details key={kind} open={isOpen}><summary>{title} <span class="muted">{found.length}</span></summary>
          <ul>{found.map((one) => <li key={one.path}><a href={`/edit?${new URLSearchParams({ file: one.path })}`} title={one.title} aria-current={one.path === current ? "page" : undefined}><FileName path={one.path.replace("shipped:", "")} /></a></li>)}</ul></details>;
      })}
    </nav>
  </>;
}

function FileName({ path }: { path: string }) {
  const at = path.lastIndexOf("/") + 1;
  return <><span class="file-name">{path.slice(at)}</span>{at > 0 && <span class="folder">{path.slice(0, at - 1)}</span>}</>;
}

function OpenFiles({ current, redraw }: { current: string; redraw: () => void }) {
  const open = [...buffers.values()];
  if (open.length < 2) return null;
  const close = (buffer: Buffer) => {
    if (isDirty(buffer) && !confirm(`${buffer.path} is not saved. Close it anyway?`)) return;
    buffers.delete(buffer.path);
    keepBuffers();
    if (buffer.path === current) setQuery({ file: [...buffers.keys()].at(-1) });
    redraw();
  };
  return (
    <ul class="open-files" aria-label="Open files">
      {open.map((one) => <li key={one.path} class={one.path === current ? "current" : ""}>
        <a href={`/edit?${new URLSearchParams({ file: one.path })}`} title={one.path}>{one.path.split(/[/:]/).at(-1)}{isDirty(one) && <span class="dirty"> ●</span>}</a>
        <button class="quiet icon" aria-label={`close ${one.path}`} onClick={() => close(one)}>✕</button></li>)}
    </ul>
  );
}

function Size({ runs }: { runs: RunFacts[] }) {
  const [run] = runs;
  if (runs.length !== 1 || !run) return runs.length ? <span>{runs.length} stages</span> : null;
  const parts = [run.model, run.steps ? `${formatWhole(run.steps)} steps` : null, run.tokens_per_step ? `${formatCount(run.tokens_per_step)} tokens per step` : null, run.tokens ? `${formatCount(run.tokens)} tokens` : null];
  return <span class="size">{parts.filter(Boolean).join(" · ")}</span>;
}

function ProblemList({ examined, editor, isWritable }: { examined: Examined | null; editor: RecipeEditor | null; isWritable: boolean }) {
  if (!examined) return <Loading what="problems" />;
  if (!examined.problems.length) return <Empty title="No problems"><p class="muted">{examined.is_resolved ? "A resolved recipe: the record of a run." : "Checked while you type, as titanrun validate does."}</p></Empty>;
  return (
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
              {span ? <button class="small" onClick={() => editor?.goTo(span[0], span[1])}>{one.from !== null ? `Line ${one.line}` : `${one.file}:${one.line}`}</button> : one.file && <span class="muted">{one.file}:{one.line}</span>}
              {isWritable && one.actions.map((action) => <button key={action.title} class={`small${action.preferred ? " primary" : ""}`} onClick={() => editor?.apply(action)}>{action.title}</button>)}
            </div>
          </li>
        );
      })}
    </ul>
  );
}

function StagePicker({ runs, value, onChange }: { runs: RunFacts[]; value: number; onChange: (value: number) => void }) {
  if (runs.length < 2) return null;
  return <label>Stage <select value={value} onChange={(event) => onChange(Number(event.currentTarget.value))}>{runs.map((run, at) => <option key={at} value={at}>{run.name}</option>)}</select></label>;
}

function Values({ examined, file }: { examined: Examined | null; file: string }) {
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


function Difference({ buffer, examined, files }: { buffer: Buffer; examined: Examined | null; files: FileEntry[] }) {
  const [other, setOther] = useState("");
  const [runs] = useAnswer((signal) => get<{ runs: RunEntry[] }>("/runs", { limit: 50 }, signal), "runs");
  const [answer, error] = useAnswer((signal) => (other ? post<{ changes: Change[] }>("/diff", { path: buffer.path, text: buffer.text, other }, signal) : Promise.resolve(null)), [other, examined?.version]);
  return <>
    <div class="controls"><label class="grow">Compared with <select value={other} onChange={(event) => setOther(event.currentTarget.value)}>
      <option value="">choose</option>
      <optgroup label="Runs">{runs?.runs.map((run) => <option key={run.id} value={`run:${run.id}`}>{run.id}</option>)}</optgroup>
      <optgroup label="Recipes">{files.filter((one) => one.kind === "recipe" && one.path !== buffer.path).map((one) => <option key={one.path} value={`file:${one.path}`}>{one.path}</option>)}</optgroup>
      <optgroup label="Shipped">{files.filter((one) => one.kind === "shipped").map((one) => <option key={one.path} value={`file:${one.path}`}>{one.path.slice(8)}</option>)}</optgroup>
    </select></label></div>
    {!other && <Empty title="What differs from another recipe or run"><p class="muted">Each difference shows whether it changes the result, and whether a resume allows it.</p></Empty>}
    {error != null && <Failure text={toMessage(error)} />}
    {answer && (answer.changes.length === 0 ? <Empty title="No difference" /> : (
      <ChangeList changes={answer.changes} />))}
  </>;
}

function Schedule({ examined }: { examined: Examined | null }) {
  const [stage, setStage] = useState(0);
  const found = examined?.schedule?.[stage];
  const curves = useMemo(() => (found ? [{ id: "lr", name: "learning rate", color: "series-1", x: found.x, y: found.y }] : []), [found]);
  if (!examined || (!examined.schedule && examined.runs.length)) return <Loading what="the schedule" />;
  if (!found) return <Empty title="No schedule"><p class="muted">{examined.runs.length ? "The run sets no number of steps." : "The recipe has errors: correct them to see the learning rate over the steps."}</p></Empty>;
  return <><StagePicker runs={examined.runs} value={stage} onChange={setStage} /><Chart title="Learning rate" metric="lr" curves={curves} height={260} /></>;
}

function NameDialog({ name, onClose, onDone }: { name: string; onClose: () => void; onDone: (name: string) => void }) {
  const [text, setText] = useState(name);
  const isValid = /^[^/\\\0][^\\\0]*\.(ya?ml|toml)$/.test(text) && !text.split("/").includes("..");
  return (
    <Dialog title="Start from this recipe" onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); if (isValid) onDone(text); }}>
        <label class="field">Name of the new file, in an existing folder of the workspace<input value={text} autofocus onInput={(event) => setText(event.currentTarget.value)} /></label>
        <p class="muted">Nothing is written before you save it.</p>
        <div class="actions"><button type="button" onClick={onClose}>Cancel</button><button class="primary" disabled={!isValid}>Open a copy</button></div>
      </form>
    </Dialog>
  );
}

function MergeDialog({ disk, mine, onClose }: { disk: string; mine: string; onClose: () => void }) {
  const holder = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let end = () => {};
    void import("../editor").then(({ showDifference }) => { if (holder.current) end = showDifference(holder.current, disk, mine); });
    return () => end();
  }, []);
  return <Dialog title="On the disk, and in the editor" onClose={onClose} wide><div class="merge" ref={holder} /><div class="actions"><button onClick={onClose}>Close</button></div></Dialog>;
}
