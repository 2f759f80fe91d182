// Recipes: the text is the only source, and every control is an edit of it.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, post, send, toMessage } from "../api";
import { Announcement, Breakable, Dialog, Failure, Heading, Tabs, useAnswer } from "../components/basics";
import { type Command, LaunchDialog } from "../components/launch";
import { type FileEntry, FileOptions, KINDS, isOverride, splitOverrides } from "../components/recipes";
import type { RecipeEditor } from "../editor";
import { follow } from "../events";
import { go, place, setQuery } from "../router";
import { about } from "../state";
import { listOriginNotes } from "./origin_notes";
import { type Buffer, Difference, type Examined, Outline, ProblemList, Schedule, Size, Values } from "./edit_panels";

type Panel = "problems" | "values" | "difference" | "schedule" | "outline";
const PANELS: Panel[] = ["problems", "values", "difference", "schedule", "outline"];

const PAUSE_MS = 120;
const KEY = "titanrun-buffers";
const ORIGINS_KEY = "titanrun-origins";

/** Open files survive a change of the page, and unsaved ones a reload. */
const buffers = new Map<string, Buffer>();
for (const one of JSON.parse(sessionStorage.getItem(KEY) ?? "[]") as Buffer[]) buffers.set(one.path, one);
const isDirty = (buffer: Buffer) => buffer.text !== buffer.disk;
const keepBuffers = () => sessionStorage.setItem(KEY, JSON.stringify([...buffers.values()].filter(isDirty)));
addEventListener("beforeunload", keepBuffers);

export function EditPage() {
  const { file = "", line = "", set = "" } = place.value.query;
  const panel = PANELS.find((one) => one === place.value.query.panel) ?? "problems";
  const [files, error, listAgain] = useAnswer((signal) => get<{ files: FileEntry[] }>("/files", {}, signal), "files");
  const [, redraw] = useState(0);
  const [failure, setFailure] = useState<string | null>(null);
  const [examined, setExamined] = useState<Examined | null>(null);
  const [changedOutside, setChangedOutside] = useState<{ text: string; sha256: string } | null>(null);
  const [isComparing, setIsComparing] = useState(false);
  const [command, setCommand] = useState<Command | null>(null);
  const [newName, setNewName] = useState<string | null>(null);
  const [indents, setIndents] = useState(false);
  const [hasOrigins, setHasOrigins] = useState(localStorage.getItem(ORIGINS_KEY) === "on");
  const [editor, setEditor] = useState<RecipeEditor | null>(null);
  const holder = useRef<HTMLDivElement>(null);
  const current = buffers.get(file);
  const asked = useRef({ version: 0, control: new AbortController(), timer: 0 as unknown as ReturnType<typeof setTimeout> });
  const wanted = [...(panel === "values" || hasOrigins ? ["resolved"] : []), ...(panel === "schedule" ? ["schedule"] : [])];
  const overrides = splitOverrides(set);
  const latest = useRef({ file, wanted, overrides });
  latest.current = { file, wanted, overrides };

  const examine = (wait: number) => {
    const state = asked.current;
    clearTimeout(state.timer);
    state.control.abort();
    const control = (state.control = new AbortController());
    const version = ++state.version;
    state.timer = setTimeout(() => {
      const { file: path, wanted: want, overrides: given } = latest.current;
      const buffer = buffers.get(path);
      if (!buffer) return;
      post<Examined>("/examine", { path, text: buffer.text, version, want, overrides: given.filter(isOverride) }, control.signal).then((found) => {
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
    if (buffer && !isDirty(buffer) && !about.value?.read_only) setCommand({ command: "train", target: path, overrides: latest.current.overrides.join("\n") });
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
          // the file that is shown: another one may have been asked for, and not have arrived
          const { path } = editorRef.current!;
          const buffer = buffers.get(path);
          if (!buffer) return;
          const before = isDirty(buffer);
          buffer.text = text;
          if (before !== isDirty(buffer)) redraw((count) => count + 1);
          if (path === latest.current.file) examine(PAUSE_MS);
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
  useEffect(() => { if (current) examine(0); }, [panel, hasOrigins]);
  useEffect(() => { if (current) examine(PAUSE_MS); }, [set]);
  useEffect(() => {
    localStorage.setItem(ORIGINS_KEY, hasOrigins ? "on" : "off");
    const values = hasOrigins && current ? examined?.resolved?.[0] : null;
    editor?.setNotes(values ? listOriginNotes(current!.text, file, values) : []);
  }, [examined, hasOrigins]);

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
        {current?.writable && !about.value?.read_only && <Overrides text={set} />}
        <p class="status-bar muted"><label class="check"><input type="checkbox" checked={hasOrigins} onChange={(event) => setHasOrigins(event.currentTarget.checked)} /> Origins</label><span class="tab-mode">{indents ? "Tab indents" : "Tab leaves the editor"} (Ctrl M)</span>{current?.newline === "crlf" && <span>CRLF</span>}<Size runs={examined?.runs ?? []} /></p>
      </section>
      <section class="side" aria-label="Examination">
        <Tabs id="side" label="Examination" value={panel} onChange={(value) => setQuery({ panel: value })}
          tabs={[["problems", problems.length ? `Problems ${problems.length}` : "Problems"], ["values", "Values"], ["difference", "Difference"], ["schedule", "Schedule"], ["outline", "Size"]]} />
        <div role="tabpanel" id="side-panel" aria-labelledby={`side-${panel}`} class="side-body">
          <Announcement text={examined ? (problems.length === 1 ? "1 problem" : `${problems.length || "no"} problems`) : ""} />
          {withheld.length > 0 && !about.value?.read_only && <div class="notice tone-warning stack"><span>The plug-ins of this recipe run installed code.</span><button onClick={allowPlugins}>Allow them in this workspace</button></div>}
          {panel === "problems" && <ProblemList examined={examined} editor={editor} isWritable={!!current?.writable} />}
          {panel === "values" && <Values examined={examined} file={file} />}
          {panel === "difference" && current && <Difference buffer={current} examined={examined} files={files?.files ?? []} />}
          {panel === "schedule" && <Schedule examined={examined} />}
          {panel === "outline" && <Outline examined={examined} file={file} />}
        </div>
      </section>
      {command && <LaunchDialog command={command} onClose={() => setCommand(null)} />}
      {newName !== null && <NameDialog name={newName} onClose={() => setNewName(null)} onDone={copyTo} />}
      {isComparing && changedOutside && current && <MergeDialog disk={changedOutside.text} mine={current.text} onClose={() => setIsComparing(false)} />}
    </div>
  );
}

/** Overrides belong to the command that runs the recipe, and are examined with it; the file stays as it is. */
function Overrides({ text }: { text: string }) {
  const lines = splitOverrides(text);
  const unfinished = lines.filter((line) => !isOverride(line));
  return (
    <details class="overrides" open={lines.length > 0}>
      <summary>Overrides{lines.length > 0 && <span class="muted"> {lines.length}</span>}</summary>
      <label><span class="hidden">Overrides of the command, one on each line</span>
        <textarea rows={2} value={text} spellcheck={false} placeholder="training.steps=50, one on each line; part of the command, not of the file" onInput={(event) => setQuery({ set: event.currentTarget.value })} /></label>
      {unfinished.length > 0 && <p class="muted small-text" role="status">Not yet path=value: <code>{unfinished.join(", ")}</code></p>}
    </details>
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
  return <><span class="file-name"><Breakable text={path.slice(at)} /></span>{at > 0 && <span class="folder">{path.slice(0, at - 1)}</span>}</>;
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
    const end = import("../editor").then(({ showDifference }) => holder.current && showDifference(holder.current, disk, mine));
    return () => void end.then((close) => close?.());
  }, []);
  return <Dialog title="On the disk, and in the editor" onClose={onClose} wide><div class="merge" ref={holder} /><div class="actions"><button onClick={onClose}>Close</button></div></Dialog>;
}
