// What the charts of all pages share: numbers, colours, axes, and drawing again when the width, the
// colours or the paper change.
"use strict";
const pageCharts = (() => {
  const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [], [6, 3]];
  const FONT = "12px system-ui, 'DejaVu Sans', sans-serif";
  const PRINT_WIDTH = 340;

  const rounded = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const compact = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });
  const number = (value) => (Math.abs(value) >= 100 ? whole : rounded).format(value);

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(name).trim();
    return { ink: named("--quiet"), grid: named("--line"), card: named("--card"), lines: [0, 1, 2, 3, 4, 5].map((at) => named("--c" + at)) };
  };

  const axis = (colour, more) => ({
    stroke: colour.ink, grid: { stroke: colour.grid, width: 1 }, ticks: { stroke: colour.grid, width: 1, size: 5 },
    font: FONT, labelFont: FONT, labelSize: 18, ...more,
  });

  // The colour and dashes of the line at this place.
  const stroke = (colour, at) => ({ stroke: colour.lines[at % colour.lines.length], width: 2, dash: DASHES[at % DASHES.length] });

  // Draws the charts in #chart-data, each in the .chart that names it. `plan(chart, width, colour)`
  // gives the library's options, all but the size, and the data.
  const show = (height, plan) => {
    const charts = JSON.parse(document.getElementById("chart-data").textContent);
    const frames = [...document.querySelectorAll(".chart")];
    let plots = [];
    let isPrinting = false;

    const widthOf = (frame) => (isPrinting ? PRINT_WIDTH : Math.max(240, frame.clientWidth));

    const draw = () => {
      for (const plot of plots) plot.destroy();
      const colour = colours();
      plots = frames.map((frame) => {
        const width = widthOf(frame);
        const { options, data } = plan(charts[frame.dataset.chart], width, colour);
        return new uPlot({ ...options, width, height }, data, frame);
      });
      document.body.dataset.charts = plots.length;
    };

    const resize = () => {
      if (isPrinting) return;
      plots.forEach((plot, at) => {
        const width = widthOf(frames[at]);
        if (width !== plot.width) plot.setSize({ width, height });
      });
    };

    const print = (starts) => {
      isPrinting = starts;
      document.documentElement.toggleAttribute("data-printing", starts);
      draw();
    };

    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    addEventListener("resize", resize);
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
  };

  return { number, whole, compact, axis, stroke, show };
})();
