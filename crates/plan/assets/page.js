// Draws the charts of a plan: the data is in #chart-data, as crates/plan/src/page/mod.rs has it.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const frames = [...document.querySelectorAll(".chart")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [], [6, 3]];
  const HEIGHT = 280;
  const PRINT_WIDTH = 340;
  let plots = [];
  let isPrinting = false;

  const rounded = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const compact = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });
  const number = (value) => (Math.abs(value) >= 100 ? whole : rounded).format(value);

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(name).trim();
    return { ink: named("--quiet"), grid: named("--line"), card: named("--card"), lines: [0, 1, 2, 3, 4, 5].map((at) => named("--c" + at)) };
  };

  const options = (chart, width, colour) => {
    const font = "12px system-ui, 'DejaVu Sans', sans-serif";
    const axis = (more) => ({
      stroke: colour.ink, grid: { stroke: colour.grid, width: 1 }, ticks: { stroke: colour.grid, width: 1, size: 5 },
      font, labelFont: font, labelSize: 18, ...more,
    });
    // Narrow screens have room for few numbers.
    const space = width < 420 ? 44 : 56;
    return {
      width, height: HEIGHT,
      padding: [10, 20, 0, 0],
      scales: { x: { time: false }, y: { range: (_, min, max) => [0, max > 0 ? max * 1.08 : 1] } },
      series: [
        { label: chart.x_label, value: (_, x) => (x == null ? "" : number(x) + " " + chart.x_label) },
        ...chart.lines.map((line, at) => {
          const stroke = colour.lines[at % colour.lines.length];
          return {
            label: line.name, stroke, width: 2, dash: DASHES[at % DASHES.length],
            points: { show: chart.points, size: 6, fill: colour.card, stroke },
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

  const draw = () => {
    for (const plot of plots) plot.destroy();
    const colour = colours();
    plots = frames.map((frame) => {
      const chart = charts[frame.dataset.chart];
      const width = isPrinting ? PRINT_WIDTH : Math.max(240, frame.clientWidth);
      return new uPlot(options(chart, width, colour), [chart.x, ...chart.lines.map((line) => line.y)], frame);
    });
    document.body.dataset.charts = plots.length;
  };

  const resize = () => {
    if (isPrinting) return;
    plots.forEach((plot, at) => {
      const width = Math.max(240, frames[at].clientWidth);
      if (width !== plot.width) plot.setSize({ width, height: HEIGHT });
    });
  };

  const print = (starts) => {
    isPrinting = starts;
    document.documentElement.toggleAttribute("data-printing", starts);
    draw();
  };

  draw();
  dark.addEventListener("change", draw);
  addEventListener("resize", resize);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
