// Charts of what the server keeps.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Line } from "./chart";
import { bytes, bytesPerSecond } from "./format";
import { Chart } from "./chart";
import type { HistoryView } from "./types";
import { Failure, Notice } from "./ui";
import { useApi } from "./use";
import { go, usePlace } from "./router";

export const SPANS: [name: string, seconds: number, text: string][] = [
  ["15min", 900, "15 min"],
  ["hour", 3600, "1 hour"],
  ["day", 86400, "1 day"],
  ["week", 7 * 86400, "1 week"],
  ["year", 365 * 86400, "1 year"],
];

export interface ChartOf {
  title: string;
  show: (value: number) => string;
  lines: [series: string, label: string][];
}

/** The span that the page's address names. */
export function useSpan(): [string, number] {
  const { query } = usePlace();
  const found = SPANS.find(([name]) => name === query.get("span")) ?? SPANS[1]!;
  return [found[0], found[1]];
}

export function SpanPicker(): JSX.Element {
  const [chosen] = useSpan();
  return (
    <div class="spans" role="group" aria-label="Time that is shown">
      {SPANS.map(([name, , text]) => (
        <button key={name} type="button" aria-pressed={name === chosen}
          onClick={() => go(`${location.pathname}?span=${name}`, true)}>
          {text}
        </button>
      ))}
    </div>
  );
}

export function Charts({ charts }: { charts: ChartOf[] }): JSX.Element {
  const [, seconds] = useSpan();
  const names = [...new Set(charts.flatMap((chart) => chart.lines.map(([series]) => series)))];
  const query = names.map((name) => `series=${encodeURIComponent(name)}`).join("&");
  const { data, error } = useApi<HistoryView>(`/history?${query}&from=-${seconds}&points=300`);
  const times = useMemo(
    () => Array.from({ length: data?.steps ?? 0 }, (_, index) => data!.from_seconds + index * data!.step_seconds),
    [data],
  );
  return (
    <>
      <Failure error={error} />
      {data?.silent?.map(({ node, why }) => (
        <Notice key={node} tone="warn" title={`Node ${node} did not answer, and its numbers are missing: ${why}`} />
      ))}
      <div class="charts">
        {charts.map((chart) => {
          const lines: Line[] = chart.lines.map(([series, label]) => ({
            label,
            values: (data?.series.find((one) => one.name === series)?.values ?? []).map((value) => value ?? null),
          }));
          return <Chart key={chart.title} title={chart.title} times={times} lines={lines} show={chart.show}
            isBinary={chart.show === bytes || chart.show === bytesPerSecond} />;
        })}
      </div>
    </>
  );
}
