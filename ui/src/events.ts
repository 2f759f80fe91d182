// One stream of events for all that the visible page follows. EventSource cannot send a header.
import { signal } from "@preact/signals";
import { getHeaders, isLost, isOffline } from "./api";

type Handler = (name: string, data: any) => void;
interface Following {
  topics: Record<string, string>;
  handle: Handler;
}

/** Whether the server has another build of the page than this one. */
export const isOutdated = signal(false);
let bundle = "";

const HIDDEN_MS = 30_000;
const MAX_WAIT_MS = 10_000;
const followers = new Set<Following>();
let cursors: Record<string, string> = {};
let running: AbortController | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
let hiddenTimer: ReturnType<typeof setTimeout> | undefined;

/** Follow topics, each from a cursor on ("" from now on). Returns a function that ends it. */
export function follow(topics: Record<string, string>, handle: Handler): () => void {
  const following = { topics, handle };
  followers.add(following);
  for (const [name, cursor] of Object.entries(topics)) if (cursor) cursors[name] = cursor;
  restart();
  return () => {
    followers.delete(following);
    restart();
  };
}

function restart(wait = 20): void {
  clearTimeout(timer);
  timer = setTimeout(() => {
    running?.abort();
    running = null;
    if (followers.size && !document.hidden && !isLost.value) void run();
  }, wait);
}

async function run(): Promise<void> {
  const control = (running = new AbortController());
  let wait = 500;
  while (running === control) {
    const names = [...new Set([...followers].flatMap((one) => Object.keys(one.topics)))];
    cursors = Object.fromEntries(names.filter((name) => cursors[name]).map((name) => [name, cursors[name]]));
    const query = new URLSearchParams({ topics: names.join(","), since: JSON.stringify(cursors) });
    try {
      const response = await fetch(`/api/events?${query}`, { headers: getHeaders(), signal: control.signal });
      if (response.status === 403) isLost.value = true;
      if (!response.ok || !response.body) throw new Error();
      isOffline.value = false;
      wait = 500;
      await read(response.body);
    } catch {
      if (control.signal.aborted || isLost.value) return;
    }
    isOffline.value = true;
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, MAX_WAIT_MS);
  }
}

async function read(body: ReadableStream<Uint8Array>): Promise<void> {
  const decoder = new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>;
  const reader = body.pipeThrough(decoder).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end: number;
    while ((end = text.indexOf("\n\n")) >= 0) {
      deliver(text.slice(0, end));
      text = text.slice(end + 2);
    }
  }
}

function deliver(frame: string): void {
  const fields: Record<string, string> = {};
  for (const line of frame.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  if (fields.id) cursors = { ...cursors, ...JSON.parse(fields.id) };
  if (!fields.event) return;
  const data = JSON.parse(fields.data ?? "{}");
  if (fields.event === "hello") {
    isOutdated.value = bundle !== "" && bundle !== data.bundle;
    bundle ||= data.bundle;
  }
  for (const one of followers) one.handle(fields.event, data);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => restart(0), HIDDEN_MS);
  else if (!running || running.signal.aborted) restart(0);
});
