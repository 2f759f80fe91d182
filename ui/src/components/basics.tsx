// Small parts that every page uses.
import { type ComponentChildren, Fragment } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const STATES: Record<string, [string, string]> = {
  starting: ["◔", "info"], running: ["●", "info"], finished: ["✓", "ok"], preempted: ["❙❙", "warning"],
  queued: ["◷", "muted"], waiting: ["◷", "muted"], done: ["✓", "ok"], cancelled: ["–", "muted"],
  stale: ["?", "warning"], failed: ["✕", "error"], crashed: ["✕", "error"], unknown: ["?", "muted"],
};

export function State({ state }: { state: string }) {
  const [shape, tone] = STATES[state] ?? STATES.unknown!;
  return <span class={`state tone-${tone}`}><span class="shape" aria-hidden="true">{shape}</span>{state}</span>;
}

export function Heading({ children }: { children: ComponentChildren }) {
  return <h1 tabIndex={-1}>{children}</h1>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><p class="empty-title">{title}</p>{children}</div>;
}

/** In place of a page that runs commands, on a server that runs none. */
export function NothingRuns({ title, why, isKnown }: { title: string; why: string; isKnown: boolean }) {
  return <div class="page"><div class="page-head"><Heading>{title}</Heading></div>{isKnown && <Empty title="Nothing runs here"><p class="muted">The server is read-only, and {why}.</p></Empty>}</div>;
}

/** Shown only after a moment: most answers are there before. */
export function Loading({ what }: { what: string }) {
  const [isLate, setIsLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setIsLate(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return isLate ? <p class="muted pad" role="status">Loading {what} …</p> : null;
}

export function Failure({ text, retry }: { text: string; retry?: () => void }) {
  return (
    <div class="notice tone-error" role="alert">
      <span>{text}</span>{retry && <button class="small" onClick={retry}>Try again</button>}
    </div>
  );
}

const ANNOUNCE_MS = 2000;

/** A text for those who hear the page, changed at most once in two seconds. */
export function Announcement({ text }: { text: string }) {
  const [said, setSaid] = useState(text);
  const last = useRef(0);
  // a busy browser shows a text some time after it was set
  useLayoutEffect(() => { last.current = Date.now(); }, [said]);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const say = () => {
      const wait = last.current + ANNOUNCE_MS - Date.now();
      if (wait > 0) timer = setTimeout(say, wait);
      else setSaid(text);
    };
    say();
    return () => clearTimeout(timer);
  }, [text]);
  return <p class="hidden" role="status">{said}</p>;
}

export function Progress({ value, label }: { value: number; label: string }) {
  const share = Math.max(0, Math.min(1, value));
  return (
    <svg class="progress" role="img" aria-label={label} viewBox="0 0 100 4" preserveAspectRatio="none">
      <rect class="progress-back" width="100" height="4" /><rect class="progress-done" width={share * 100} height="4" />
    </svg>
  );
}

export function Spark({ values }: { values: (number | string | null)[] }) {
  const known = values.filter((value): value is number => typeof value === "number");
  if (known.length < 2) return <span class="spark" />;
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const points = known.map((value, at) => `${((at / (known.length - 1)) * 78 + 1).toFixed(1)},${(21 - ((value - low) / span) * 20).toFixed(1)}`);
  return <svg class="spark" viewBox="0 0 80 22" aria-hidden="true"><polyline points={points.join(" ")} /></svg>;
}

export function Tabs<T extends string>(props: { tabs: [T, string][]; value: T; onChange: (value: T) => void; label: string; id: string }) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const at = props.tabs.findIndex(([name]) => name === props.value);
    const next = props.tabs[(at + step + props.tabs.length) % props.tabs.length]!;
    props.onChange(next[0]);
    list.current?.querySelector<HTMLElement>(`[data-tab="${next[0]}"]`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} ref={list} onKeyDown={move}>
      {props.tabs.map(([name, title]) => (
        <button key={name} role="tab" data-tab={name} id={`${props.id}-${name}`} aria-controls={`${props.id}-panel`}
          aria-selected={name === props.value} tabIndex={name === props.value ? 0 : -1} onClick={() => props.onChange(name)}>{title}</button>
      ))}
    </div>
  );
}

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  // before anything is painted: what is typed from now on belongs to the dialog
  useLayoutEffect(() => {
    const dialog = element.current!;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog ref={element} class={props.wide ? "wide" : ""} aria-labelledby="dialog-title"
      onCancel={(event) => { event.preventDefault(); props.onClose(); }}
      onClick={(event) => event.target === element.current && props.onClose()}>
      <div class="dialog-body">
        <header><h2 id="dialog-title">{props.title}</h2><button class="quiet icon" aria-label="Close" onClick={props.onClose}>✕</button></header>
        {props.children}
      </div>
    </dialog>
  );
}

/** A button that opens what can be chosen; a click elsewhere, Escape or the end of the focus closes it. */
export function Menu({ title, children, wide }: { title: ComponentChildren; children: ComponentChildren; wide?: boolean }) {
  const element = useRef<HTMLDetailsElement>(null);
  const close = () => { if (element.current) element.current.open = false; };
  useEffect(() => {
    const look = (event: Event) => { if (!element.current?.contains(event.target as Node)) close(); };
    document.addEventListener("pointerdown", look);
    document.addEventListener("focusin", look);
    return () => { document.removeEventListener("pointerdown", look); document.removeEventListener("focusin", look); };
  }, []);
  const leave = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !element.current?.open) return;
    close();
    element.current.querySelector("summary")!.focus();
  };
  return <details class="menu" ref={element} onKeyDown={leave}><summary class="button">{title}</summary><div class={`menu-body${wide ? " wide" : ""}`}>{children}</div></details>;
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isDone, setIsDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setIsDone(true);
    setTimeout(() => setIsDone(false), 1500);
  };
  return <button class="small" onClick={copy}>{isDone ? "Copied" : label}</button>;
}

/** A path or name that may break after its dots, dashes and underscores. */
export function Breakable({ text }: { text: string }) {
  return <>{text.split(/(?<=[._/:-])/).map((part, at) => <Fragment key={at}>{at > 0 && <wbr />}{part}</Fragment>)}</>;
}

/** The answer of a request, its failure, and a function that asks again. */
export function useAnswer<T>(ask: (signal: AbortSignal) => Promise<T>, key: unknown): [T | null, unknown, () => void] {
  const [answer, setAnswer] = useState<{ key: string; data: T } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [count, setCount] = useState(0);
  const name = JSON.stringify(key);
  useEffect(() => {
    const control = new AbortController();
    ask(control.signal).then(
      (data) => { setAnswer({ key: name, data }); setError(null); },
      (problem) => control.signal.aborted || setError(problem),
    );
    return () => control.abort();
  }, [name, count]);
  return [answer?.data ?? null, error, () => setCount((value) => value + 1)];
}
