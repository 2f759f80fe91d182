// All runs: filter, sort, tag, choose some to compare.
import { Fragment } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, post, toMessage, toRun } from "../api";
import { Empty, Failure, Heading, Loading, Menu, Progress, Spark, State, useAnswer } from "../components/basics";
import { ReportDialog } from "../components/report";
import { follow } from "../events";
import { NONE, formatDate, formatDuration, formatLoss, formatSpeed, formatWhole } from "../format";
import { go, place, setQuery, toUrl } from "../router";
import { about } from "../state";

export interface RunEntry {
  id: string;
  name: string | null;
  state: string;
  step: number;
  steps: number | null;
  loss: number | string | null;
  validation: number | null;
  tps: number | null;
  started: string | null;
  seconds: number | null;
  tags: string[];
  spark: (number | string | null)[];
}
interface Listed {
  runs: RunEntry[];
  matching: number;
  total: number;
  active: number;
  tags: string[];
}

const PAGE = 200;
const STATES = ["starting", "running", "finished", "preempted", "failed", "crashed", "stale"];
const COLUMNS: [string, string, boolean][] = [
  ["state", "State", false], ["name", "Run", false], ["step", "Step", true], ["loss", "Loss", true], ["validation", "Best validation", true],
  ["tps", "Speed", true], ["seconds", "Duration", true], ["started", "Started", false], ["spark", "Loss curve", false],
];

/** `loss<3 tag:baseline lr` as conditions, tags and text. */
export function parseFilter(text: string) {
  const words = text.split(/\s+/).filter(Boolean);
  const where = words.filter((word) => /^\w+(<=|>=|==|!=|<|>)\S+$/.test(word));
  const tags = words.filter((word) => word.startsWith("tag:")).map((word) => word.slice(4)).filter(Boolean);
  const rest = words.filter((word) => !where.includes(word) && !word.startsWith("tag:"));
  return { where, tags, text: rest.join(" ") };
}

export function RunsPage() {
  const query = place.value.query;
  const sort = query.sort ?? "started";
  const order = query.order ?? "descending";
  const start = Number(query.start ?? 0);
  const [filter, setFilter] = useState(query.filter ?? "");
  const [chosen, setChosen] = useState<string[]>([]);
  const hidden = (query.hide ?? "").split(",").filter(Boolean);
  const columns = COLUMNS.filter(([key]) => !hidden.includes(key));
  const parsed = parseFilter(query.filter ?? "");
  const ask = (signal: AbortSignal) => {
    const search = new URLSearchParams({ sort, order, start: String(start), limit: String(PAGE), text: parsed.text, tag: parsed.tags.join(","), state: query.state ?? "" });
    for (const condition of parsed.where) search.append("where", condition);
    return get<Listed>(`/runs?${search}`, {}, signal);
  };
  const [listed, error, again] = useAnswer(ask, [sort, order, start, query.filter, query.state]);
  useEffect(() => follow({ runs: "" }, (name) => name === "runs.changed" && again()), []);
  useEffect(() => {
    const timer = setTimeout(() => filter !== (place.value.query.filter ?? "") && setQuery({ filter, start: undefined }), 200);
    return () => clearTimeout(timer);
  }, [filter]);

  if (listed && listed.total === 0) return <FirstRun />;
  const toggle = (id: string) => setChosen(chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id]);
  const turn = (to: number) => { setQuery({ start: String(to) }); scrollTo(0, 0); };
  const sortBy = (key: string) => setQuery({ sort: key, order: sort === key && order === "descending" ? "ascending" : "descending", start: undefined });
  return (
    <div class="page">
      <div class="page-head"><Heading>Runs</Heading>{listed && <span class="muted" role="status">{listed.matching === listed.total ? formatWhole(listed.total) : `${formatWhole(listed.matching)} of ${formatWhole(listed.total)}`}</span>}</div>
      <div class="filters">
        <input data-filter type="search" value={filter} placeholder="name, loss<3.2, tag:baseline" aria-label="Filter runs" spellcheck={false}
          onInput={(event) => setFilter(event.currentTarget.value)} />
        <label><span class="hidden">State</span>
          <select value={query.state ?? ""} onChange={(event) => setQuery({ state: event.currentTarget.value, start: undefined })}>
            <option value="">All states</option>
            <option value="starting,running">active</option>
            {STATES.map((state) => <option key={state} value={state}>{state}</option>)}
          </select>
        </label>
        <Columns hidden={hidden} />
        <span class="grow" />
        <Selection chosen={chosen} clear={() => setChosen([])} changed={again} />
      </div>
      {error != null && <Failure text={toMessage(error)} retry={again} />}
      {!listed && error == null && <Loading what="runs" />}
      {listed && listed.runs.length === 0 && <Empty title="No run matches"><button onClick={() => { setFilter(""); setQuery({ filter: undefined, state: undefined }); }}>Show all runs</button></Empty>}
      {listed && listed.runs.length > 0 && (
        <table class="runs">
          <thead>
            <tr>
              <th class="check-cell"><span class="hidden">Choose</span></th>
              {columns.filter(([key]) => key !== "spark").map(([key, title, isNumber]) => (
                <th key={key} class={`${isNumber ? "number" : ""} col-${key}`} aria-sort={sort === key ? (order as "ascending" | "descending") : undefined}>
                  <button class="sort" onClick={() => sortBy(key)}>{title}<span aria-hidden="true" class="arrow">{sort === key ? (order === "descending" ? "↓" : "↑") : ""}</span></button>
                </th>
              ))}
              {!hidden.includes("spark") && <th class="col-spark">Loss curve</th>}
            </tr>
          </thead>
          <tbody>{listed.runs.map((run) => <Row key={run.id} run={run} isChosen={chosen.includes(run.id)} hidden={hidden} toggle={() => toggle(run.id)} />)}</tbody>
        </table>
      )}
      {listed && listed.matching > PAGE && (
        <nav class="paging" aria-label="Pages of the list">
          <button disabled={start === 0} onClick={() => turn(Math.max(0, start - PAGE))}>Previous</button>
          <span class="muted">{start + 1} to {Math.min(start + PAGE, listed.matching)} of {formatWhole(listed.matching)}</span>
          <button disabled={start + PAGE >= listed.matching} onClick={() => turn(start + PAGE)}>Next</button>
        </nav>
      )}
    </div>
  );
}

/** Which columns are shown; the address holds those that are not. */
function Columns({ hidden }: { hidden: string[] }) {
  const toggle = (key: string) => setQuery({ hide: (hidden.includes(key) ? hidden.filter((one) => one !== key) : [...hidden, key]).join(",") });
  return <Menu title="Columns">{COLUMNS.filter(([key]) => key !== "name").map(([key, title]) => <label key={key} class="check"><input type="checkbox" checked={!hidden.includes(key)} onChange={() => toggle(key)} /> {title}</label>)}</Menu>;
}

function Row({ run, isChosen, hidden, toggle }: { run: RunEntry; isChosen: boolean; hidden: string[]; toggle: () => void }) {
  const label = run.id;
  const has = (key: string) => !hidden.includes(key);
  const rest = [["validation", run.validation === null ? NONE : `validation ${formatLoss(run.validation)}`], ["tps", formatSpeed(run.tps)], ["seconds", formatDuration(run.seconds)], ["started", formatDate(run.started)]] as const;
  return (
    <tr aria-selected={isChosen} class={isChosen ? "chosen" : ""}>
      <td class="check-cell"><input type="checkbox" checked={isChosen} aria-label={`choose ${label}`} onChange={toggle} /></td>
      {has("state") && <td class="col-state"><State state={run.state} /></td>}
      <td class="col-name"><a href={toUrl("/run", { id: run.id })}>{label}</a>
        {run.tags.map((tag) => <button key={tag} class="tag" onClick={() => setQuery({ filter: `tag:${tag}` })} aria-label={`only with tag ${tag}`}>{tag}</button>)}</td>
      {has("step") && <td class="number col-step">{formatWhole(run.step)}{run.steps ? <span class="muted"> / {formatWhole(run.steps)}</span> : null}
        {run.steps && (run.state === "running" || run.state === "starting") ? <Progress value={run.step / run.steps} label={`${Math.round((100 * run.step) / run.steps)} %`} /> : null}</td>}
      {has("loss") && <td class="number col-loss">{formatLoss(run.loss)}</td>}
      {has("validation") && <td class="number col-validation">{formatLoss(run.validation)}</td>}
      {has("tps") && <td class="number col-tps">{formatSpeed(run.tps)}</td>}
      {has("seconds") && <td class="number col-seconds">{formatDuration(run.seconds)}</td>}
      {has("started") && <td class="col-started" title={run.started ?? ""}>{formatDate(run.started)}</td>}
      {has("spark") && <td class="col-spark"><Spark values={run.spark} /></td>}
      <td class="col-rest">{rest.filter(([key, value]) => has(key) && value !== NONE).map(([, value], at, all) => <Fragment key={at}><span class="nowrap">{value}{at < all.length - 1 && " ·"}</span> </Fragment>)}</td>
    </tr>
  );
}

function Selection({ chosen, clear, changed }: { chosen: string[]; clear: () => void; changed: () => void }) {
  const [tag, setTag] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [isReporting, setIsReporting] = useState(false);
  const [archived, setArchived] = useState<string[]>([]);
  const archive = async (runs: string[], restore: boolean) => {
    try {
      const found = await post<{ runs: string[] }>("/archive", { runs, restore });
      setArchived(restore ? [] : found.runs);
      setError(null);
      clear();
      changed();
    } catch (problem) {
      setError(toMessage(problem));
    }
  };
  if (archived.length && !chosen.length) return <div class="selection" role="status">{error && <span class="tone-error">{error}</span>}<span>Archived {archived.length} {archived.length === 1 ? "run" : "runs"} in <code>.archive</code></span><button onClick={() => void archive(archived, true)}>Undo</button></div>;
  if (!chosen.length) return <span class="muted hint">Choose runs to compare, tag, archive or report them</span>;
  const apply = async () => {
    try {
      for (const run of chosen) await post(toRun(run, "/tags"), { add: [tag] });
      setTag("");
      setError(null);
      changed();
    } catch (problem) {
      setError(toMessage(problem));
    }
  };
  return (
    <div class="selection" role="group" aria-label="Chosen runs">
      {error && <span class="tone-error" role="alert">{error}</span>}
      <span>{chosen.length} chosen</span>
      {!about.value?.read_only && <form onSubmit={(event) => { event.preventDefault(); void apply(); }}>
        <input class="short" value={tag} placeholder="tag" aria-label="New tag" onInput={(event) => setTag(event.currentTarget.value)} />
        <button disabled={!tag}>Tag</button>
      </form>}
      {!about.value?.read_only && <button onClick={() => void archive(chosen, false)}>Archive</button>}
      <button onClick={() => setIsReporting(true)}>Report</button>
      <button onClick={clear}>Clear</button>
      <button class="primary" disabled={chosen.length < 2} onClick={() => go("/compare", { runs: chosen.join(",") })}>Compare</button>
      {isReporting && <ReportDialog runs={chosen} onClose={() => setIsReporting(false)} />}
    </div>
  );
}

const FIRST: [string, string][] = [
  ["shipped:llama3_debug.yaml", "A small Llama 3 learns a tiny corpus: one minute on a CPU"],
  ["shipped:llama3_sft_debug.yaml", "Supervised fine-tuning on conversations"],
  ["shipped:llama3_8b.yaml", "Llama 3 8B on GPUs"],
];

function FirstRun() {
  return (
    <div class="page">
      <div class="page-head"><Heading>Runs</Heading></div>
      <Empty title="No runs yet">
        <p class="muted">Runs below <code>{about.value?.runs}</code> appear here, whoever starts them. Start from a shipped recipe:</p>
        <ul class="cards">
          {FIRST.map(([file, text]) => (
            <li key={file}><a class="card" href={toUrl("/edit", { file })}><strong>{file.slice(8).replace(".yaml", "")}</strong><span class="muted">{text}</span></a></li>
          ))}
        </ul>
      </Empty>
    </div>
  );
}
