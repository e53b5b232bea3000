// Draws the charts of a report page: the data is in #chart-data, as crates/tools/bench/src/report/chart.rs has it.
"use strict";
(() => {
  const { number, whole, compact, stroke } = pageCharts;
  const time = (us) =>
    us >= 1e6 ? number(us / 1e6) + " s" : us >= 1e3 ? number(us / 1e3) + " ms" : number(us) + " µs";
  // x of a latency chart is "of so many requests one is slower": 100 is the 99th percentile.
  const percentile = (slower) => "p" + +(100 - 100 / slower).toFixed(Math.max(0, Math.ceil(Math.log10(slower)) - 1));

  const powers = (base, min, max) => {
    const found = [];
    for (let value = 1; value <= max * 1.0001; value *= base) if (value >= min * 0.9999) found.push(value);
    return found;
  };
  // Powers of ten, with 2 and 5 between them where there are few.
  const decades = (min, max) => {
    const found = [];
    const steps = max / min > 1e3 ? [1] : [1, 2, 5];
    for (let power = 10 ** Math.floor(Math.log10(min)); power <= max; power *= 10)
      for (const step of steps) if (power * step >= min * 0.999 && power * step <= max * 1.001) found.push(power * step);
    return found;
  };

  const KINDS = {
    time: {
      x: { label: "seconds", scale: {}, value: (x) => number(x) + " s" },
    },
    latency: {
      x: {
        label: "percentile",
        scale: { distr: 3, range: (_, min, max) => [Math.max(1, min), Math.max(10, max)] },
        splits: (min, max) => [1, 2, ...powers(10, 10, max)].filter((value) => value >= min && value !== 1),
        value: percentile,
      },
      y: { scale: { distr: 3, range: (_, min, max) => [min / 1.3, max * 1.3] }, splits: decades, value: time },
    },
    depth: {
      x: {
        label: "depth: requests in flight of each worker",
        scale: { distr: 3, log: 2, range: (_, min, max) => [min / 1.1, max * 1.1] },
        splits: (min, max, all) => all.filter((x, at) => at === 0 || x / all[at - 1] > 1.6),
        value: (x) => whole.format(x),
      },
      points: true,
    },
  };

  // The results have one colour on the whole page, so that a line and the list at the top agree.
  const labels = [...document.querySelectorAll("ul.runs b")].map((label) => label.textContent);

  const options = (chart, colour) => {
    const kind = KINDS[chart.kind];
    // The library would leave out what is no power of ten.
    const axis = (more) => pageCharts.axis(colour, { filter: (_, all) => all, ...more });
    const splits = (choose, scale) => choose && ((u) => choose(u.scales[scale].min, u.scales[scale].max, u.data[0]));
    const value = kind.y ? kind.y.value : (y) => number(y) + " " + chart.unit;
    return {
      padding: [10, 26, 0, 0],
      scales: {
        x: { time: false, ...kind.x.scale },
        y: kind.y ? kind.y.scale : { range: (_, min, max) => [0, max > 0 ? max * 1.08 : 1] },
      },
      series: [
        { label: kind.x.label, value: (_, x) => (x == null ? "" : kind.x.value(x)) },
        ...chart.lines.map((line, place) => {
          // Lines that are no results have colours by their place.
          const found = labels.indexOf(line.label);
          const at = found < 0 ? place : found;
          const look = stroke(colour, at);
          return {
            label: line.label, ...look, spanGaps: true,
            points: { show: kind.points === true, size: 7, fill: colour.card, stroke: look.stroke },
            value: (_, y) => (y == null ? "" : value(y)),
          };
        }),
      ],
      axes: [
        axis({ label: kind.x.label, size: 34, splits: splits(kind.x.splits, "x"),
          values: (_, all) => all.map((x) => (chart.kind === "time" ? number(x) : kind.x.value(x))) }),
        axis({ label: kind.y ? undefined : chart.unit, size: 58, splits: splits(kind.y && kind.y.splits, "y"),
          values: (_, all) => all.map((y) => (kind.y ? time(y) : compact.format(y))) }),
      ],
      cursor: { drag: { x: false, y: false } },
    };
  };

  pageCharts.show(260, (chart, _, colour) => ({
    options: options(chart, colour),
    data: uPlot.join(chart.lines.map((line) => [line.x, line.y])),
  }));
})();
