// One box that finds pages, recipes and runs by name, and a few actions.
import { useState } from "preact/hooks";
import { get } from "../api";
import { go } from "../router";
import { Dialog, useAnswer } from "./basics";

export interface Entry { title: string; kind: string; act: () => void }
const MAX_SHOWN = 12;

/** Whether all words of a query are somewhere in a title. */
export const matches = (title: string, query: string) => query.toLowerCase().split(/\s+/).every((word) => title.toLowerCase().includes(word));

export function Palette({ entries, onClose }: { entries: Entry[]; onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [files] = useAnswer((signal) => get<{ files: { path: string }[] }>("/files", {}, signal), "files");
  const [runs] = useAnswer((signal) => get<{ runs: { id: string }[] }>("/runs", { text: text.trim(), limit: MAX_SHOWN }, signal), text);
  const open = (path: string, query: Record<string, string>) => () => go(path, query);
  const every: Entry[] = [
    ...entries,
    ...(runs?.runs ?? []).map((run) => ({ title: run.id, kind: "run", act: open("/run", { id: run.id }) })),
    ...(files?.files ?? []).map((file) => ({ title: file.path, kind: "recipe", act: open("/edit", { file: file.path }) })),
  ];
  const shown = every.filter((one) => matches(`${one.title} ${one.kind}`, text)).slice(0, MAX_SHOWN);
  const index = Math.min(at, Math.max(shown.length - 1, 0));
  const choose = (entry?: Entry) => {
    if (!entry) return;
    onClose();
    entry.act();
  };
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step && shown.length) {
      event.preventDefault();
      setAt((index + step + shown.length) % shown.length);
    }
    if (event.key === "Enter") {
      event.preventDefault();
      choose(shown[index]);
    }
  };
  return (
    <Dialog title="Go to" onClose={onClose}>
      <input autofocus role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={shown.length ? `palette-${index}` : undefined} aria-label="Page, recipe or run"
        placeholder="Page, recipe or run" spellcheck={false} value={text} onKeyDown={move} onInput={(event) => { setText(event.currentTarget.value); setAt(0); }} />
      <ul class="palette" role="listbox" id="palette-list" aria-label="Found">
        {shown.map((one, place) => <li key={`${one.kind} ${one.title}`} id={`palette-${place}`} role="option" aria-selected={place === index} onClick={() => choose(one)}><span class="grow">{one.title}</span><span class="muted small-text">{one.kind}</span></li>)}
      </ul>
      {!shown.length && <p class="muted" role="status">Nothing has this name.</p>}
    </Dialog>
  );
}
