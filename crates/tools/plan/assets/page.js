// Draws the charts of a plan: the data is in #chart-data, as crates/tools/plan/src/page/mod.rs has it.
"use strict";
(() => {
  const { number, compact, stroke } = pageCharts;

  const options = (chart, width, colour) => {
    const axis = (more) => pageCharts.axis(colour, more);
    // Narrow screens have room for few numbers.
    const space = width < 420 ? 44 : 56;
    return {
      padding: [10, 20, 0, 0],
      scales: { x: { time: false }, y: { range: (_, min, max) => [0, max > 0 ? max * 1.08 : 1] } },
      series: [
        { label: chart.x_label, value: (_, x) => (x == null ? "" : number(x) + " " + chart.x_label) },
        ...chart.lines.map((line, at) => {
          const look = stroke(colour, at);
          return {
            label: line.name, ...look,
            points: { show: chart.points, size: 6, fill: colour.card, stroke: look.stroke },
            value: (_, y) => (y == null ? "" : number(y) + " " + chart.y_label),
          };
        }),
      ],
      axes: [
        axis({ label: chart.x_label, size: 34, space, values: (_, all) => all.map((x) => (x == null ? "" : number(x))) }),
        axis({ label: chart.y_label, size: 58, values: (_, all) => all.map((y) => (y == null ? "" : compact.format(y))) }),
      ],
      cursor: { drag: { x: false, y: false } },
    };
  };

  pageCharts.show(280, (chart, width, colour) => ({
    options: options(chart, width, colour),
    data: [chart.x, ...chart.lines.map((line) => line.y)],
  }));
})();
