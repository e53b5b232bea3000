// Numbers over time, drawn.
//
// Owns: the library and its colours, the table for those who do not see a picture. Must not know: what is measured.
import type { JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  values: (number | null)[];
}

const HEIGHT_PX = 190;
const COLOURS = [1, 2, 3, 4, 5, 6, 7, 8].map((number) => `--line-${number}`);
// Steps of an axis in bytes: round in MiB, not in millions.
const BINARY_STEPS = Array.from({ length: 60 }, (_, power) => [2 ** power, 1.5 * 2 ** power]).flat();
// A table of more rows is of use to nobody.
const TABLE_ROWS = 24;

// Of so short a time several marks of an axis are in one minute.
const SECONDS_SHOWN_BELOW = 300;

const variable = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function clock(seconds: number, spanSeconds: number): string {
  const at = new Date(seconds * 1000);
  const options: Intl.DateTimeFormatOptions =
    spanSeconds > 3 * 86400 ? { day: "numeric", month: "short" }
      : { hour: "2-digit", minute: "2-digit", ...(spanSeconds < SECONDS_SHOWN_BELOW ? { second: "2-digit" } : {}) };
  return new Intl.DateTimeFormat(undefined, options).format(at);
}

export function Chart({ title, times, lines, show, isBinary }: {
  title: string;
  times: number[];
  lines: Line[];
  show: (value: number) => string;
  /** Values are bytes. */
  isBinary: boolean;
}): JSX.Element {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [isDark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  const [width, setWidth] = useState(0);
  const id = useId();
  const labels = lines.map((line) => line.label).join("\n");

  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(scheme.matches);
    scheme.addEventListener("change", changed);
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    if (element.current) observer.observe(element.current);
    return () => {
      scheme.removeEventListener("change", changed);
      observer.disconnect();
    };
  }, []);

  useEffect(() => {
    if (!element.current || width === 0) return undefined;
    const quiet = variable("--quiet");
    const grid = { stroke: variable("--rule"), width: 1 };
    plot.current = new uPlot(
      {
        width,
        height: HEIGHT_PX,
        cursor: { y: false, points: { size: 7 } },
        legend: { show: false },
        padding: [8, 28, 0, 0],
        scales: { x: { time: true }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
        axes: [
          { stroke: quiet, grid: { show: false }, ticks: grid, font: "12px system-ui", space: 100,
            values: (self, splits) => splits.map((at) => clock(at, (self.scales.x?.max ?? 0) - (self.scales.x?.min ?? 0))) },
          { stroke: quiet, grid, ticks: { show: false }, font: "12px system-ui", size: 78, space: 36,
            ...(isBinary ? { incrs: BINARY_STEPS } : {}),
            values: (_, splits) => splits.map((value) => show(value)) },
        ],
        series: [
          {},
          ...lines.map((line, index) => ({
            label: line.label,
            stroke: variable(COLOURS[index % COLOURS.length]!),
            width: 1.75,
            points: { show: false },
            ...(lines.length === 1 ? { fill: `${variable(COLOURS[0]!)}22` } : {}),
          })),
        ],
        hooks: { setCursor: [(self) => setAt(self.cursor.idx ?? undefined)] },
      },
      [times, ...lines.map((line) => line.values)],
      element.current,
    );
    return () => plot.current?.destroy();
    // The data is changed below, without making the chart anew.
  }, [width, isDark, labels]);

  useEffect(() => {
    plot.current?.setData([times, ...lines.map((line) => line.values)]);
  }, [times, lines]);

  const [at, setAt] = useState<number>();
  const shownAt = at !== undefined && at < times.length ? at : undefined;
  const value = (line: Line) => {
    const found = shownAt === undefined ? line.values.findLast((one) => one !== null) : line.values[shownAt];
    return found === null || found === undefined ? "–" : show(found);
  };
  const known = lines.some((line) => line.values.some((one) => one !== null));
  const every = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  return (
    <figure class="chart" aria-labelledby={id}>
      <figcaption>
        <span id={id} class="chart-title">{title}</span>
        <span class="legend">
          {lines.map((line, index) => (
            <span key={line.label}>
              <i class={`swatch line-${(index % COLOURS.length) + 1}`} aria-hidden="true" />
              {line.label} <b>{value(line)}</b>
            </span>
          ))}
          <span class="at">{shownAt === undefined ? "" : new Date(times[shownAt]! * 1000).toLocaleString()}</span>
        </span>
      </figcaption>
      <div ref={element} class="plot" role="img" aria-label={`${title}: ${lines.map((line) => `${line.label} ${value(line)}`).join(", ")}`}>
        {!known && <p class="nothing">Nothing is known of this time yet.</p>}
      </div>
      <details class="as-table">
        <summary>As a table</summary>
        <div class="table-wrap" role="region" aria-label={`${title} as a table`} tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">Time</th>
                {lines.map((line) => <th key={line.label} scope="col" class="number">{line.label}</th>)}
              </tr>
            </thead>
            <tbody>
              {times.map((time, index) => [time, index] as const).filter(([, index]) => index % every === 0).map(([time, index]) => (
                <tr key={time}>
                  <th scope="row">{new Date(time * 1000).toLocaleString()}</th>
                  {lines.map((line) => {
                    const one = line.values[index];
                    return <td key={line.label} class="number">{one === null || one === undefined ? "–" : show(one)}</td>;
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </figure>
  );
}
