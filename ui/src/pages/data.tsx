// What a recipe reads: rows as text, with the tokens that count in the loss, and statistics.
import { Empty, Heading, NothingRuns, Tabs } from "../components/basics";
import { ShortCommand } from "../components/command";
import { RecipePicker, splitOverrides } from "../components/recipes";
import { formatCount, formatWhole } from "../format";
import { place, setQuery } from "../router";
import { about } from "../state";

type Kind = "context" | "counted";
interface Dataset {
  section: string;
  samples?: { row: number; pieces: [Kind, string][] }[];
  rows: number | null;
  is_stream: boolean;
  looked_at: number;
  row_length: number;
  documents: number | null;
  longest: number | null;
  filled: number;
  counted: number;
  without_labels: number;
  duplicates: number;
  in_training: number | null;
  replies: number;
  without_end: number;
  left_out: number | null;
  cut: number | null;
  lengths?: Histogram;
  counted_of_rows?: Histogram;
}
interface Histogram { start: number; width: number; counts: number[] }
const SPECIAL = /(<\|?[a-zA-Z_][^<>\n]{0,40}>|\[\/?[A-Z]{2,12}\])/;
const TABS: ["rows" | "statistics", string][] = [["rows", "Rows"], ["statistics", "Statistics"]];
const COUNTS = [1, 3, 10, 30];

export function DataPage() {
  const { file = "", set = "", tab = "rows", row = "", count = "3" } = place.value.query;
  const request = { target: file, overrides: splitOverrides(set) };
  const where = /^\d+$/.test(row) ? { row: Number(row) } : { count: Number(count) || 3 };
  if (about.value?.read_only !== false) return <NothingRuns title="Data" why="reading the data of a recipe runs a command" isKnown={!!about.value} />;
  return (
    <div class="page">
      <div class="page-head"><Heading>Data</Heading></div>
      <div class="picker"><RecipePicker file={file} set={set} kinds={["recipe", "shipped"]} /></div>
      {!file ? <Empty title="What a run reads"><p class="muted">Choose a recipe to see its data as the model gets it: which tokens count in the loss, how long documents are, what is cut or comes twice.</p></Empty> : <>
        <Tabs tabs={TABS} value={tab as "rows"} id="data" label="Parts of the data" onChange={(value) => setQuery({ tab: value })} />
        <section role="tabpanel" id="data-panel" aria-labelledby={`data-${tab}`} class="card-body">
          {tab === "rows" && <div class="controls">
            <label>Rows <select value={count} disabled={row !== ""} onChange={(event) => setQuery({ count: event.currentTarget.value })}>{COUNTS.map((value) => <option key={value} value={value}>first {value}</option>)}</select></label>
            <label>or the row with number <input class="count" inputMode="numeric" pattern="[0-9]*" value={row} onInput={(event) => setQuery({ row: event.currentTarget.value })} /></label>
          </div>}
          {tab === "rows" && <ShortCommand key="rows" request={{ command: "data-show", ...request, ...where }} action="Show the rows">{(found: Dataset[]) => <Rows datasets={found} />}</ShortCommand>}
          {tab === "statistics" && <ShortCommand key="statistics" request={{ command: "data-stats", ...request }} action="Measure">{(found: Dataset[]) => found.map((one) => <Statistics key={one.section} data={one} />)}</ShortCommand>}
        </section>
      </>}
    </div>
  );
}

function Rows({ datasets }: { datasets: Dataset[] }) {
  return <>
    <p class="muted"><span class="counted">Underlined bold text</span> counts in the loss; the rest is context. <span class="chip">special tokens</span> are set apart.</p>
    {datasets.map((one) => (
      <section key={one.section} aria-label={one.section}>
        <h2>{one.section} <span class="muted small-text">{one.is_stream ? "a stream" : `${formatWhole(one.rows)} rows`} of {formatWhole(one.row_length)} tokens</span></h2>
        {one.samples?.length ? <ol class="rows">{one.samples.map((sample) => (
          <li key={sample.row}><p class="label">row {formatWhole(sample.row)}</p><div class="row-text" tabIndex={0} role="region" aria-label={`row ${sample.row} of ${one.section}`}>{sample.pieces.map(([kind, text], at) => <Piece key={at} kind={kind} text={text} />)}</div></li>))}</ol> : <Empty title="No such row" />}
      </section>
    ))}
  </>;
}

function Piece({ kind, text }: { kind: Kind; text: string }) {
  const parts = text.split(SPECIAL).map((part, at) => (at % 2 ? <span key={at} class="chip">{part}</span> : part));
  return kind === "counted" ? <strong class="counted">{parts}</strong> : <span>{parts}</span>;
}

// of a stream, what is left out is not known
const formatCounted = (value: number | null) => (value === null ? "not counted" : formatWhole(value));

function Statistics({ data }: { data: Dataset }) {
  const share = (value: number) => `${(100 * value).toFixed(1)} %`;
  const facts: [string, string, boolean][] = [
    ["Rows", data.is_stream ? "stream" : formatCount(data.rows), false], ["Documents", formatCount(data.documents), false], ["Longest document", `${formatWhole(data.longest)} tokens`, false],
    ["Filled", share(data.filled), false], ["Count in the loss", share(data.counted), data.counted === 0], ["Rows that come twice", formatWhole(data.duplicates), data.duplicates > 0],
    ["Rows without loss", formatWhole(data.without_labels), data.without_labels > 0],
    ...(data.in_training === null ? [] : [["Also in training", formatWhole(data.in_training), data.in_training > 0] as [string, string, boolean]]),
    ["Left out", formatCounted(data.left_out), !!data.left_out], ["Truncated", formatCounted(data.cut), !!data.cut],
    ...(data.replies ? [["Replies without end", `${formatWhole(data.without_end)} of ${formatWhole(data.replies)}`, data.without_end > 0] as [string, string, boolean]] : []),
  ];
  return (
    <section aria-label={data.section}>
      <h2>{data.section} <span class="muted small-text">{formatWhole(data.looked_at)} rows of {formatWhole(data.row_length)} tokens were read</span></h2>
      <dl class="facts">{facts.map(([name, value, isOdd]) => <div key={name}><dt>{name}</dt><dd class={isOdd ? "tone-warning" : ""}>{value}{isOdd && <span class="shape" aria-hidden="true"> !</span>}</dd></div>)}</dl>
      <div class="charts">
        {data.lengths && <Bars title="Length of documents" unit="tokens" histogram={data.lengths} />}
        {data.counted_of_rows && <Bars title="Tokens of a row that count in the loss" unit="tokens" histogram={data.counted_of_rows} />}
      </div>
    </section>
  );
}

const WIDTH = 400;
const HEIGHT = 120;
function Bars({ title, unit, histogram }: { title: string; unit: string; histogram: Histogram }) {
  const { start, width, counts } = histogram;
  if (!counts.length) return null;
  const most = Math.max(...counts);
  const step = WIDTH / counts.length;
  const thickness = Math.max(1, Math.min(step - 1, 60));
  const end = start + width * counts.length - 1;
  const range = (at: number) => (width === 1 ? formatWhole(start + at) : `${formatWhole(start + at * width)} to ${formatWhole(start + (at + 1) * width - 1)}`);
  return (
    <figure class="chart bars">
      <figcaption><span class="chart-title">{title}</span><span class="muted">{unit}</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${range(0)} up to ${formatWhole(end)} ${unit}; most are ${range(counts.indexOf(most))}`}>
        {counts.map((value, at) => <rect key={at} x={at * step + (step - thickness) / 2} width={thickness} y={HEIGHT - (HEIGHT * value) / most} height={(HEIGHT * value) / most} />)}
      </svg>
      <div class="axis muted">{counts.length === 1 ? <span class="alone">{range(0)}</span> : <><span>{formatWhole(start)}</span><span>{formatWhole(end)}</span></>}</div>
      <details><summary>Table</summary><div class="scroll chart-table" tabIndex={0} role="region" aria-label={`table of ${title}`}><table><thead><tr><th>{unit}</th><th class="number">Number</th></tr></thead>
        <tbody>{counts.map((value, at) => value > 0 && <tr key={at}><td>{range(at)}</td><td class="number">{formatWhole(value)}</td></tr>)}</tbody></table></div></details>
    </figure>
  );
}
