// Benchmarks of this server: run one, watch it, compare those that were.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Refusal } from "../api";
import { API, cairn, call } from "../api";
import { Chart } from "../chart";
import { bytes, bytesPerSecond, count, date, duration, exactSize, microseconds, perSecond } from "../format";
import { go, to } from "../router";
import { useSession } from "../session";
import type { Benchmark, BenchmarkFigure, BenchmarkList, BenchmarkProgress, BenchmarkPublished, Volume } from "../types";
import { ActionForm, Badge, Card, Choice, Failure, Loading, Notice, Page, Progress, Same, Table, useSay } from "../ui";
import { asRefusal, useApi } from "../use";

const MIB = 1024 * 1024;
const SIZES: [value: string, text: string][] = [
  [String(64 * MIB), "64 MiB"],
  [String(256 * MIB), "256 MiB"],
  [String(1024 * MIB), "1 GiB"],
  [String(4096 * MIB), "4 GiB"],
];
const SIZE_DEFAULT = String(256 * MIB);
const WATCH_MS = 1000;
const IDLE_MS = 10_000;
// Points of the live chart: those of the last two minutes.
const POINTS_MAX = 120;
const COMPARED_MAX = 2;

type Action = { kind: "start" } | { kind: "stop" };

/** `sequential read` and what it came to. */
export const figureText = (figure: { value: number; unit: string }): string => `${count(figure.value)}${figure.unit === "MB/s" ? " MB/s" : "/s"}`;

const latencyText = (figure: BenchmarkFigure): string =>
  (figure.latency_p99_microseconds == null ? "" : `99 % in ${microseconds(figure.latency_p99_microseconds)}`);

export function Benchmarks() {
  const [everyMs, setEvery] = useState(WATCH_MS);
  const list = useApi<BenchmarkList>("/benchmarks", everyMs);
  const published = useApi<{ figures: BenchmarkPublished[] }>("/benchmarks/published", 600_000);
  const session = useSession();
  const [action, setAction] = useState<Action>();
  const [chosen, setChosen] = useState<number[]>([]);
  const isAdmin = session.role === "admin";
  const running = list.data?.running ?? undefined;
  useEffect(() => setEvery(running ? WATCH_MS : IDLE_MS), [running === undefined]);
  const runs = list.data?.runs ?? [];
  const compared = chosen.map((id) => runs.find((run) => run.id === id)).filter((run) => run !== undefined);
  const newest = runs.find((run) => run.figures.length > 0);
  const shown = compared.length > 0 ? compared : newest ? [newest] : [];
  const choose = (id: number, isChosen: boolean) =>
    setChosen((before) => (isChosen ? [...before.filter((one) => one !== id), id].slice(-COMPARED_MAX) : before.filter((one) => one !== id)));
  return (
    <Page title="Benchmarks" actions={isAdmin && <button type="button" class="primary" disabled={running !== undefined} onClick={() => setAction({ kind: "start" })}>Run a benchmark</button>}>
      <p class="lead">The server measures itself for a minute: it writes files to a volume, reads, overwrites and removes them. The load runs on the same machine, without a network in between.</p>
      <Failure error={list.error} />
      {list.data?.problem && <Notice tone="bad" title="Runs are not written to disk now.">{list.data.problem}</Notice>}
      {!list.data ? <Loading /> : <>
        {running && <Running progress={running} onStop={isAdmin ? () => setAction({ kind: "stop" }) : undefined} />}
        <Card title="Runs" wide>
          <Table<Benchmark> caption="Runs, newest first" rows={runs} rowKey={(run) => String(run.id)} empty="There was none yet."
            columns={[
              { name: "When", show: (run) => <>{date(run.started_seconds)}<small>{run.seconds > 0 ? `took ${duration(run.seconds)}` : ""}</small></> },
              { name: "Volume", show: (run) => <><a href={to("volumes", run.volume)}>{run.volume}</a><small>{bytes(run.working_set_bytes)} of files</small></> },
              ...TITLES.map(([title, short]) => ({ name: short, isNumber: true, show: (run: Benchmark) => <Cell figure={run.figures.find((one) => one.title === title)} /> })),
              { name: "State", show: (run) => (run.partial ? <><Badge tone="warn">Partial</Badge><small class="why">{run.partial}</small></> : <Badge tone="good">Done</Badge>) },
              { name: "Compare", show: (run) => run.figures.length > 0 && <div class="row-actions">
                <label class="check"><input type="checkbox" checked={chosen.includes(run.id)} onChange={(event) => choose(run.id, event.currentTarget.checked)} aria-label={`Compare the run of ${date(run.started_seconds)}`} /></label>
                <a class="button" href={`${API}/benchmarks/${run.id}`} download aria-label={`Result of ${date(run.started_seconds)} as JSON`}>JSON</a>
              </div> },
            ]} />
          {runs.length > 0 && <p class="hint">Below each figure is the 99th percentile of the latency. Choose two runs to compare them. A result as JSON is a file for <code>cairn bench show</code> and <code>cairn bench report</code>.</p>}
        </Card>
        {shown.length > 0 && <Compared runs={shown} />}
        {shown.length > 0 && published.data && <Published run={shown[shown.length - 1]!} figures={published.data.figures} />}
        <Same command={cairn("bench", "server", "list")} request={{ method: "GET", path: "/benchmarks" }} />
      </>}
      {action?.kind === "start" && <StartBenchmark onClose={() => setAction(undefined)} onDone={() => void list.again()} />}
      {action?.kind === "stop" && (
        <ActionForm title="Stop the benchmark" submit="Stop" done="It ends when its files are removed." onClose={() => setAction(undefined)} onDone={() => void list.again()}
          request={{ method: "POST", path: "/benchmarks/stop" }} command={cairn("bench", "server", "stop")}>
          <p>Finished measurements are kept as a partial result.</p>
        </ActionForm>
      )}
    </Page>
  );
}

const TITLES: [title: string, short: string][] = [
  ["sequential read", "Sequential read"],
  ["random read", "Random read"],
  ["sequential write", "Sequential write"],
  ["random write", "Random write"],
];

function Cell({ figure }: { figure: BenchmarkFigure | undefined }) {
  if (!figure) return <>–</>;
  return <>{figureText(figure)}<small>{latencyText(figure)}</small></>;
}

function Running({ progress, onStop }: { progress: BenchmarkProgress; onStop: (() => void) | undefined }) {
  const [points, setPoints] = useState<{ at: number; bytes: number; latency: number | null }[]>([]);
  const started = useRef(progress.started_seconds);
  useEffect(() => {
    const at = Date.now() / 1000;
    const isSame = started.current === progress.started_seconds;
    started.current = progress.started_seconds;
    setPoints((before) => [...(isSame ? before : []), { at, bytes: progress.bytes_per_second, latency: progress.latency_microseconds ?? null }].slice(-POINTS_MAX));
  }, [progress]);
  const times = points.map((point) => point.at);
  const state = progress.is_stopping ? "It stops, and its files are removed." : progress.is_preparing ? "Files are written that it needs." : `${progress.phase_percent} % of this part`;
  return (
    <Card title={`Running on volume ${progress.volume}`} wide extra={onStop && <button type="button" class="danger-quiet" disabled={progress.is_stopping} onClick={onStop}>Stop</button>}>
      <p><b>{progress.phase_count > 0 ? `Part ${progress.phase_number} of ${progress.phase_count}: ` : ""}{progress.phase}</b> <span class="quiet-text">{state}</span></p>
      <Progress label={`Progress: ${progress.phase}`} value={Math.max(0, progress.phase_number - 1) * 100 + progress.phase_percent} max={Math.max(1, progress.phase_count) * 100} />
      <dl class="tiles three">
        <div class="tile"><dt>Rate</dt><dd><span class="big">{bytesPerSecond(progress.bytes_per_second)}</span></dd></div>
        <div class="tile"><dt>Requests</dt><dd><span class="big">{perSecond(progress.operations_per_second)}</span></dd></div>
        <div class="tile"><dt>Mean latency</dt><dd><span class="big">{progress.latency_microseconds == null ? "–" : microseconds(progress.latency_microseconds)}</span></dd></div>
      </dl>
      <div class="charts">
        <Chart title="Rate" times={times} lines={[{ label: "read or written", values: points.map((point) => point.bytes) }]} show={bytesPerSecond} isBinary />
        <Chart title="Mean latency" times={times} lines={[{ label: "of a request", values: points.map((point) => point.latency) }]} show={microseconds} isBinary={false} />
      </div>
    </Card>
  );
}

function Compared({ runs }: { runs: Benchmark[] }) {
  const [first, second] = runs;
  const report = `${API}/benchmarks/report?${runs.map((run) => `run=${run.id}`).join("&")}`;
  const of = (run: Benchmark, title: string) => run.figures.find((figure) => figure.title === title);
  const name = (run: Benchmark) => `${run.volume}, ${date(run.started_seconds)}`;
  return (
    <Card title={second ? "Two runs beside each other" : `The run of ${date(first!.started_seconds)}`} wide extra={<a class="button" href={report} download>Download the report with charts</a>}>
      <Table<string> caption="Figures of runs" rows={TITLES.map(([title]) => title)} rowKey={(title) => title} empty=""
        columns={[
          { name: "What", show: (title) => title },
          { name: second ? `First: ${name(first!)}` : "Result", isNumber: true, show: (title) => <Cell figure={of(first!, title)} /> },
          ...(second ? [
            { name: `Second: ${name(second)}`, isNumber: true, show: (title: string) => <Cell figure={of(second, title)} /> },
            { name: "Second to first", isNumber: true, show: (title: string) => ratio(of(first!, title), of(second, title)) },
          ] : []),
        ]} />
    </Card>
  );
}

function ratio(first: BenchmarkFigure | undefined, second: BenchmarkFigure | undefined): string {
  if (!first || !second || first.value <= 0) return "–";
  return `× ${(second.value / first.value).toFixed(2)}`;
}

interface Beside {
  key: string;
  title: string;
  value: number;
  unit: string;
  isOwn: boolean;
  who: string;
  how: string;
}

function Published({ run, figures }: { run: Benchmark; figures: BenchmarkPublished[] }) {
  const rows = TITLES.flatMap(([title]) => {
    const own = run.figures.find((figure) => figure.title === title);
    if (!own) return [];
    const others = figures.filter((figure) => figure.title === title && figure.unit === own.unit);
    const all: Beside[] = others.map((figure, index) => ({
      key: `${title}-${index}`, title, value: figure.value, unit: figure.unit, isOwn: false, who: figure.system, how: `${figure.hardware}; ${figure.source}, ${figure.date}${figure.at_least ? "; at least" : ""}`,
    }));
    all.push({ key: `${title}-own`, title, value: own.value, unit: own.unit, isOwn: true, who: `This server, volume ${run.volume}`, how: `the run of ${date(run.started_seconds)}` });
    all.sort((one, other) => other.value - one.value);
    return all;
  });
  const greatest = new Map<string, number>();
  for (const row of rows) greatest.set(row.title, Math.max(greatest.get(row.title) ?? 0, row.value));
  return (
    <Card title="Beside published figures" wide>
      <p class="hint">Figures of other systems on other hardware, measured by others with many clients: they show what is possible, not what this machine should reach.</p>
      <details>
        <summary>Show them</summary>
        <Table<Beside> caption="Published figures and this run, the highest first" rows={rows} rowKey={(row) => row.key} empty="This run has no figure that somebody published."
          columns={[
            { name: "What", show: (row) => row.title },
            { name: "Figure", isNumber: true, show: (row) => <>{figureText(row)}<span class="bar" aria-hidden="true"><span style={{ width: `${(100 * row.value) / (greatest.get(row.title) || 1)}%` }} /></span></> },
            { name: "Who", show: (row) => <span class="wraps">{row.isOwn ? <b>{row.who}</b> : row.who}<small>{row.how}</small></span> },
          ]} />
      </details>
    </Card>
  );
}

function StartBenchmark({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const volumes = useApi<{ volumes: Volume[] }>("/volumes", 60_000);
  const [volume, setVolume] = useState<string>();
  const [size, setSize] = useState(SIZE_DEFAULT);
  if (!volumes.data) return null;
  const names = volumes.data.volumes.map((one) => one.name);
  const chosen = volume ?? names[0] ?? "";
  return (
    <ActionForm title="Run a benchmark" submit="Run it" done={`A benchmark runs on volume ${chosen}.`} onClose={onClose} onDone={onDone}
      request={{ method: "POST", path: "/benchmarks", body: { volume: chosen, working_set_bytes: Number(size) } }}
      command={cairn("bench", "server", "start", chosen, "--working-set", exactSize(Number(size)))}>
      <p>The benchmark takes about a minute and slows clients down. Its files are in the folder <code>cairn-bench</code> of the volume, and are removed at the end. It stops when the pool runs out of space.</p>
      <Choice label="Volume" value={chosen} onValue={setVolume} choices={names.map((name) => [name, name])} />
      <Choice label="Files of" value={size} onValue={setSize} choices={SIZES} hint="Files that fit into the server's memory are read from memory." />
    </ActionForm>
  );
}

/** On a server without data: tries it out at once. */
export function TryIt({ volume }: { volume: string }) {
  const session = useSession();
  const say = useSay();
  const [error, setError] = useState<Refusal>();
  const [isBusy, setBusy] = useState(false);
  if (session.role !== "admin") return null;
  const request = { method: "POST" as const, path: "/benchmarks", body: { volume } };
  const start = async () => {
    setBusy(true);
    try {
      await call(request);
      say(`A benchmark runs on volume ${volume}.`);
      // Where it is to be seen.
      go(to("benchmarks"));
    } catch (failure) {
      setError(asRefusal(failure));
      setBusy(false);
    }
  };
  return (
    <div class="try">
      <p>Or try the server first: a benchmark of one minute, whose files are removed at the end.</p>
      <button type="button" disabled={isBusy} onClick={() => void start()}>Try it for a minute</button>
      <Failure error={error} />
      <Same command={cairn("bench", "server", "start", volume)} request={request} />
    </div>
  );
}
