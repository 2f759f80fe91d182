// A conversation with one checkpoint, or the same messages to two at once.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, remove, toMessage, toRun } from "../api";
import { Empty, Failure, Heading, NothingRuns, useAnswer } from "../components/basics";
import { CommandLine, Conditions, needsConsent, usePreview } from "../components/command";
import { follow } from "../events";
import { formatWhole } from "../format";
import { place, setQuery } from "../router";
import { about } from "../state";
import type { RunEntry } from "./runs";

interface Done { tokens: number; seconds: number; reason: "stop" | "length" | "cancelled" }
interface Event { id?: number; said?: string; model?: number; text?: string; done?: Done; end?: boolean; error?: string; ready?: string[]; picked?: string; reset?: boolean; closed?: number; output?: string }
interface Reply { text: string; done: Done | null }
interface Turn { id: number; said: string; replies: Reply[]; error: string | null; hasEnded: boolean }
interface Talk { names: string[] | null; turns: Turn[]; picked: string | null; closed: string | null }
interface Options { temperature: number; top_p: number; max_new_tokens: number; seed: number }

const REASONS = { stop: "ended", length: "reached the limit", cancelled: "stopped by you" };
const DEFAULTS: Options = { temperature: 1, top_p: 1, max_new_tokens: 128, seed: 0 };
const FIELDS: [keyof Options, string, number, number, number][] = [["temperature", "Temperature", 0, 2, 0.1], ["top_p", "Top p", 0.05, 1, 0.05], ["max_new_tokens", "Most tokens", 1, 4096, 1], ["seed", "Seed", 0, 1e9, 1]];

/** What is to be seen after these events. */
function replay(events: Event[]): Talk {
  const talk: Talk = { names: null, turns: [], picked: null, closed: null };
  for (const one of events) {
    if (one.ready) talk.names = one.ready;
    if (one.said !== undefined) {
      talk.turns.push({ id: one.id!, said: one.said, replies: [], error: null, hasEnded: false });
      talk.picked = null;
    }
    if (one.reset) { talk.turns = []; talk.picked = null; }
    if (one.picked) talk.picked = one.picked;
    if (one.closed !== undefined) talk.closed = one.output || `exit code ${one.closed}`;
    const turn = talk.turns.find((known) => known.id === one.id);
    if (turn && one.model !== undefined) {
      const reply = (turn.replies[one.model] ??= { text: "", done: null });
      reply.text += one.text ?? "";
      reply.done = one.done ?? reply.done;
    }
    if (turn && one.error) { turn.error = one.error; turn.hasEnded = true; }
    if (turn && one.end) turn.hasEnded = true;
  }
  return talk;
}

export function ChatPage() {
  const { id = "" } = place.value.query;
  if (about.value?.read_only !== false) return <NothingRuns title="Chat" why="a conversation runs a command" isKnown={!!about.value} />;
  return <div class="page"><div class="page-head"><Heading>Chat</Heading></div>{id ? <Conversation key={id} id={id} /> : <Start />}</div>;
}

function Start() {
  const { left = "", right = "" } = place.value.query;
  const [runs] = useAnswer((signal) => get<{ runs: RunEntry[] }>("/runs", { limit: 200 }, signal), "runs");
  const [isAllowed, setAllowed] = useState(false);
  const [failure, setFailure] = useState<string | null>(null);
  const [first, second] = [parse(left), parse(right)];
  const isChosen = first.step !== null && (!second.target || second.step !== null);
  const [preview, problem, again] = usePreview(isChosen ? { command: "chat", ...first, ...(second.target ? { other: second } : {}) } : null);
  const start = () => post<{ id: string }>("/jobs", { digest: preview!.digest, allows_code: isAllowed }).then((found) => setQuery({ id: found.id }), (refused) => { setFailure(toMessage(refused)); again(); });
  if (runs && !runs.runs.length) return <Empty title="No run to talk to yet"><p class="muted">Train a model that has a chat template, for example <code>llama3_sft_debug</code>, and save a checkpoint.</p><a class="button" href="/edit?file=shipped:llama3_sft_debug.yaml">Open this recipe</a></Empty>;
  return (
    <section class="card-body chat-start" aria-label="Models">
      <p class="muted">Talk to a checkpoint of a run that was trained on conversations. With a second one, both reply to the same messages, and your choices become pairs to train on.</p>
      <div class="picker">
        <CheckpointPicker label="Model" value={left} runs={runs?.runs ?? []} change={(value) => setQuery({ left: value })} />
        <CheckpointPicker label="Compared with" value={right} runs={runs?.runs ?? []} change={(value) => setQuery({ right: value })} isOptional />
      </div>
      {[problem, failure].filter(Boolean).map((one) => <Failure key={one} text={one!} retry={again} />)}
      {preview && <><CommandLine shell={preview.shell} label={`Command, in ${preview.cwd}`} /><Conditions preview={preview} isAllowed={isAllowed} setAllowed={setAllowed} /></>}
      <div class="actions left"><button class="primary" disabled={!preview || (needsConsent([preview]) && !isAllowed)} onClick={start}>Load and talk</button></div>
    </section>
  );
}

const parse = (value: string): { target: string; step: number | null } => {
  const at = value.lastIndexOf("@");
  return at < 0 ? { target: value, step: null } : { target: value.slice(0, at), step: Number(value.slice(at + 1)) };
};

function CheckpointPicker(props: { label: string; value: string; runs: RunEntry[]; change: (value: string) => void; isOptional?: boolean }) {
  const { target, step } = parse(props.value);
  const [details] = useAnswer((signal) => (target ? get<{ checkpoints: { step: number; damage?: string }[] }>(toRun(target), {}, signal) : Promise.resolve(null)), target);
  const steps = (details?.checkpoints ?? []).filter((one) => !one.damage).map((one) => one.step);
  useEffect(() => { if (target && step === null && steps.length) props.change(`${target}@${steps.at(-1)}`); }, [details]);
  return (
    <div class="pair">
      <label class="field">{props.label}<select value={target} onChange={(event) => props.change(event.currentTarget.value)}>
        <option value="">{props.isOptional ? "nothing" : "choose a run"}</option>{props.runs.map((run) => <option key={run.id} value={run.id}>{run.id}</option>)}</select></label>
      {target && details && (steps.length ? <label class="field">Checkpoint<select value={step ?? ""} onChange={(event) => props.change(`${target}@${event.currentTarget.value}`)}>{steps.map((one) => <option key={one} value={one}>step {formatWhole(one)}</option>)}</select></label> : <p class="tone-warning">The run has no checkpoint.</p>)}
    </div>
  );
}

function Conversation({ id }: { id: string }) {
  const [events, setEvents] = useState<Event[] | null>(null);
  const [shell, setShell] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [text, setText] = useState("");
  const [system, setSystem] = useState("");
  const [options, setOptions] = useState<Options[]>([DEFAULTS, DEFAULTS]);
  const [tied, setTied] = useState<number | null>(null);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let stop = () => {};
    let isGone = false;
    get(`/chat/${id}`).then((found) => {
      if (isGone) return;
      setShell(found.shell);
      setEvents(found.events);
      stop = follow({ [`chat:${id}`]: found.cursor }, (name, data) => {
        if (name === "chat.events" && data.id === id) setEvents((before) => [...(before ?? []), ...data.events]);
      });
    }, (problem) => setError(toMessage(problem)));
    return () => { isGone = true; stop(); };
  }, [id]);
  const talk = replay(events ?? []);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [events?.length]);
  const last = talk.turns.at(-1);
  const isBusy = !!last && !last.hasEnded && talk.closed === null;
  const names = talk.names ?? [];
  const tell = (request: object) => post(`/chat/${id}`, { request }).then(() => setError(null), (problem) => setError(toMessage(problem)));
  const say = () => {
    if (!text.trim() || isBusy || !names.length) return;
    void tell({ id: (last?.id ?? 0) + 1, text, options: options.slice(0, names.length) });
    setText("");
  };
  const leave = async () => {
    await remove(`/chat/${id}`).catch(() => {});
    setQuery({ id: undefined });
  };
  if (error && events === null) return <><Failure text={error} /><div class="actions left"><button onClick={() => setQuery({ id: undefined })}>Choose models</button></div></>;
  const canPick = names.length === 2 && !!last?.hasEnded && !last.error && !talk.picked && tied !== last.id;
  return <>
    <CommandLine shell={shell.replace(/ --requests$/, "")} label="The same in a terminal" />
    {talk.closed !== null && <><Failure text="The conversation has ended." /><pre class="output" tabIndex={0} aria-label="output">{talk.closed}</pre></>}
    {error && <Failure text={error} />}
    <p role="status" class={names.length ? "hidden" : "muted"}>{names.length ? (isBusy ? "The reply is being written" : "Ready") : talk.closed === null ? "Loading the model …" : ""}</p>
    <details class="sampling" open={!talk.turns.length}><summary>Sampling and system message</summary>
      <div class="panes">{names.map((name, at) => <fieldset key={at} class="choice"><legend>{name}</legend>{FIELDS.map(([key, title, low, high, step]) => (
        <label key={key} class="check">{title} <input class="count" type="number" min={low} max={high} step={step} value={options[at]![key]} onInput={(event) => { const value = event.currentTarget.valueAsNumber; if (Number.isFinite(value)) setOptions(options.map((one, index) => (index === at ? { ...one, [key]: value } : one))); }} /></label>))}</fieldset>)}</div>
      <label class="field">System message<textarea rows={2} value={system} onInput={(event) => setSystem(event.currentTarget.value)} /></label>
      <button class="small" disabled={isBusy} onClick={() => tell({ reset: true, system })}>Start again with it</button>
    </details>
    <ol class="talk">{talk.turns.map((turn) => (
      <li key={turn.id}>
        <p class="said"><span class="hidden">You: </span>{turn.said}</p>
        {turn.error && <Failure text={turn.error} />}
        {!turn.error && <div class="panes">{names.map((name, at) => <ReplyView key={at} name={name} reply={turn.replies[at]} isBusy={!turn.hasEnded} />)}</div>}
      </li>))}</ol>
    <div ref={end} />
    {canPick && <div class="selection" role="group" aria-label="Which reply is better?"><span>Which reply is better?</span>
      <button onClick={() => tell({ pick: 1 })}>Left</button><button onClick={() => tell({ pick: 2 })}>Right</button><button onClick={() => setTied(last!.id)}>Tie</button><span class="muted">A choice becomes a pair to train on in picks.jsonl, and both go on from it. A tie writes nothing.</span></div>}
    {names.length === 2 && last?.hasEnded && tied === last.id && <p class="muted" role="status">A tie: nothing is written, and each goes on from its own reply.</p>}
    {talk.picked && <p class="muted" role="status">Saved to {talk.picked}. Both go on from the better reply.</p>}
    <form class="message" onSubmit={(event) => { event.preventDefault(); say(); }}>
      <label class="field"><span class="hidden">Message</span><textarea rows={2} value={text} placeholder="Message (Enter sends, Shift Enter makes a new line)" disabled={talk.closed !== null} onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); say(); } }} /></label>
      <div class="actions left">
        {isBusy ? <button type="button" onClick={() => tell({ cancel: last!.id })}>Stop</button> : <button class="primary" disabled={!text.trim() || !names.length || talk.closed !== null}>Send</button>}
        <button type="button" onClick={leave}>End the conversation</button>
      </div>
    </form>
  </>;
}

function ReplyView({ name, reply, isBusy }: { name: string; reply?: Reply; isBusy: boolean }) {
  const done = reply?.done;
  return (
    <div class="reply" role="group" aria-label={`reply of ${name}`}>
      <p class="label">{name}</p>
      <p class="reply-text">{reply?.text || (done ? "(no text)" : "") || (isBusy ? "…" : "")}</p>
      {done && <p class="muted figure small-text">{formatWhole(done.tokens)} {done.tokens === 1 ? "token" : "tokens"}, {formatWhole(done.tokens / Math.max(done.seconds, 1e-9))} tok/s, {REASONS[done.reason]}</p>}
    </div>
  );
}
