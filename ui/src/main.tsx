import "uplot/dist/uPlot.min.css";
import "./tokens.css";
import "./app.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { get, isLost, isOffline, openSession } from "./api";
import { Dialog } from "./components/basics";
import { type Entry, Palette } from "./components/palette";
import { follow, isOutdated } from "./events";
import { ChatPage } from "./pages/chat";
import { ComparePage } from "./pages/compare";
import { DataPage } from "./pages/data";
import { EditPage } from "./pages/edit";
import { LaunchPage } from "./pages/launch";
import { PlanPage } from "./pages/plan";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { go, place, startRouter } from "./router";
import { about, numActive, numQueued } from "./state";
import { type Theme, theme } from "./theme";

const PAGES: [string, string, string][] = [["/edit", "Edit", "e"], ["/runs", "Runs", "r"], ["/compare", "Compare", "c"], ["/data", "Data", "d"], ["/plan", "Plan", "p"], ["/chat", "Chat", "t"], ["/launch", "Launch", "l"]];
const KEYS: [string, string][] = [
  [PAGES.map(([, , key]) => `g ${key}`).join(", "), PAGES.map(([, name]) => name).join(", ")], ["Ctrl K", "go to a page, recipe or run"], ["/", "filter"], ["Ctrl S", "save"], ["Ctrl Enter", "run the recipe"],
  ["F8", "next problem"], ["Ctrl .", "corrections for the problem at the cursor"], ["F12", "go to definition"], ["Ctrl Space", "complete"], ["?", "this list"],
];
const THEMES: [Theme, string][] = [["system", "System"], ["light", "Light"], ["dark", "Dark"]];
const isHelpShown = signal(false);
const isPaletteShown = signal(false);
const hasKeys = signal(localStorage.getItem("titanrun-keys") !== "off");

function listenToKeys(): void {
  let isAfterG = false;
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if ((event.ctrlKey || event.metaKey) && event.key === "k" && !target.closest("dialog")) {
      event.preventDefault();
      isPaletteShown.value = true;
      return;
    }
    const isWriting = target.closest("input, textarea, select, .cm-editor, dialog");
    if (!hasKeys.value || isWriting || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = PAGES.find(([, , key]) => key === event.key);
    if (isAfterG && page) go(page[0]);
    else if (event.key === "?") isHelpShown.value = true;
    else if (event.key === "/") {
      event.preventDefault();
      document.querySelector<HTMLInputElement>("[data-filter]")?.focus();
    }
    isAfterG = event.key === "g";
  });
}

function Help() {
  const toggle = (on: boolean) => {
    hasKeys.value = on;
    localStorage.setItem("titanrun-keys", on ? "on" : "off");
  };
  return (
    <Dialog title="Keys and connection" onClose={() => (isHelpShown.value = false)}>
      <dl class="keys">{KEYS.map(([key, text]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{text}</dd></div>)}</dl>
      <label class="check"><input type="checkbox" checked={hasKeys.value} onChange={(event) => toggle(event.currentTarget.checked)} /> Single keys are active</label>
      <p class="muted">In the editor, Tab leaves it; Ctrl M makes Tab indent.</p>
      <p class="muted">From another machine: <code>ssh -L {location.port}:127.0.0.1:{location.port} HOST</code></p>
      <p class="muted">titanrun {about.value?.version}</p>
    </Dialog>
  );
}

const listEntries = (): Entry[] => [
  ...PAGES.map(([to, name]) => ({ title: name, kind: "page", act: () => go(to) })),
  ...THEMES.map(([name, title]) => ({ title: `${title} theme`, kind: "action", act: () => void (theme.value = name) })),
  { title: "Keys and connection", kind: "action", act: () => void (isHelpShown.value = true) },
];

function TopBar() {
  const path = place.value.path === "/" ? "/edit" : place.value.path;
  const counts = [[numActive.value, "running"], [numQueued.value, "queued"]].filter(([count]) => count).map((pair) => pair.join(" "));
  return (
    <header class="top">
      <a class="brand" href="/edit"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M5 9c5 0 5 14 11 14s5-6 11-6" /></svg>titanrun</a>
      <span class="workspace muted">{about.value?.workspace}{about.value?.read_only && <span class="pill">read-only</span>}</span>
      <nav aria-label="Pages">
        {PAGES.map(([to, name]) => (
          <a key={to} href={to} aria-current={path === to || (to === "/runs" && path === "/run") ? "page" : undefined}>{name}</a>
        ))}
      </nav>
      <span class="grow" />
      {counts.length > 0 && <a class="pill tone-info" href={numQueued.value ? "/launch" : "/runs?state=starting,running"}><span class="shape" aria-hidden="true">●</span><span>{counts[0]}{counts[1] && <span class="wide-only">, {counts[1]}</span>}</span></a>}
      <button class="quiet palette-button" onClick={() => (isPaletteShown.value = true)}><svg viewBox="0 0 16 16" aria-hidden="true"><circle cx="7" cy="7" r="4.5" /><path d="M10.5 10.5 14 14" /></svg><span class="hidden">Go to a page, recipe or run</span><kbd class="wide-only">Ctrl K</kbd></button>
      <label class="theme"><span class="hidden">Theme</span>
        <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          {THEMES.map(([name, title]) => <option key={name} value={name}>{title}</option>)}
        </select>
      </label>
      <button class="quiet icon" aria-label="Keys and connection" onClick={() => (isHelpShown.value = true)}>?</button>
    </header>
  );
}

function Page() {
  const { path, query } = place.value;
  if (path === "/runs") return <RunsPage />;
  if (path === "/run") return <RunPage key={query.id} />;
  if (path === "/compare") return <ComparePage />;
  if (path === "/launch") return <LaunchPage />;
  if (path === "/data") return <DataPage />;
  if (path === "/plan") return <PlanPage />;
  if (path === "/chat") return <ChatPage />;
  return <EditPage />;
}

function App() {
  useEffect(() => {
    if (isLost.value) return;
    const refresh = () => get("/runs", { limit: 1 }).then((found) => (numActive.value = found.active), () => {});
    get("/about").then((found) => (about.value = found), () => {});
    const count = () => get("/jobs").then((found) => (numQueued.value = found.jobs.filter((job: { state: string }) => job.state === "queued").length), () => {});
    refresh();
    void count();
    return follow({ runs: "", jobs: "" }, (name) => {
      if (name === "runs.changed") void refresh();
      if (name === "jobs.changed") void count();
    });
  }, [isLost.value]);
  useEffect(() => {
    document.title = `${place.value.path === "/run" ? place.value.query.id : PAGES.find(([to]) => to === place.value.path)?.[1] ?? "Edit"} · titanrun`;
  }, [place.value]);
  if (isLost.value) {
    return (
      <main class="lost"><h1>This page is not connected</h1>
        <p>Press Enter in the terminal in which <code>titanrun ui</code> runs, or start it once more in the same folder: it prints a new link.</p></main>
    );
  }
  return <>
    <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.querySelector<HTMLElement>("h1")?.focus(); }}>Skip to the content</a>
    <TopBar />
    {isOffline.value && <div class="notice tone-warning offline" role="status">The server does not answer. Runs go on; this page reconnects by itself.</div>}
    {isOutdated.value && <div class="notice tone-info offline" role="status"><span>The server has a newer version of this page.</span><button class="small" onClick={() => location.reload()}>Reload</button></div>}
    <main id="main"><Page /></main>
    {isHelpShown.value && <Help />}
    {isPaletteShown.value && <Palette entries={listEntries()} onClose={() => (isPaletteShown.value = false)} />}
  </>;
}

openSession();
startRouter();
listenToKeys();
render(<App />, document.getElementById("app")!);
