// The panels of the view "Scope": each draws one kind of data of a reduced frame.
import { axisUnit, caption, colour, counted, decibel, element, frequencies, number, onScheme, setText } from "./common.js";
import { paint } from "./palette.js";

const listed = (values) => Array.from(values, (value) => (Number.isNaN(value) ? null : value));

/** A chart in a figure that follows the width of the figure and the colours of the page. */
class Chart {
  constructor(figure, height) {
    this.place = figure.querySelector(".plot");
    this.height = height;
    this.key = "";
    this.chart = null;
    this.data = null;
    new ResizeObserver(() => this.chart?.setSize(this.size())).observe(this.place);
    onScheme(() => { this.key = ""; });
  }

  size() {
    return { width: Math.max(240, this.place.clientWidth), height: this.height };
  }

  /** Shows `data`. `options` returns the options of uPlot; it is called again when `key` changes. */
  show(key, data, options) {
    this.data = data;
    if (key !== this.key) {
      this.chart?.destroy();
      this.chart = new uPlot({ ...this.size(), ...options() }, data, this.place);
      this.key = key;
    } else {
      this.chart.setData(data);
    }
  }

  clear() {
    this.chart?.destroy();
    this.chart = this.data = null;
    this.key = "";
  }
}

/** Width of the vertical axis, so that its longest label fits. */
const wide = (_, labels) => Math.max(58, 20 + 7 * Math.max(0, ...(labels ?? []).map((label) => String(label ?? "").length)));

const axes = (x, y) => [x, y].map((label, i) => ({
  label, labelSize: 18, size: i ? wide : 34, stroke: colour("text"), font: "12px system-ui", labelFont: "12px system-ui",
  values: (_, ticks) => ticks.map((tick) => (tick == null ? tick : number(tick))),
  grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 },
}));

const drawn = (label, stroke, more) => ({ label, stroke, width: 1.2, points: { show: false }, value: (_, value) => number(value), ...more });

/** Shades the ranges of missing points of the frame in grey. */
const shade = (ranges) => (chart) => {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.fillStyle = colour("missing");
  ctx.globalAlpha = .45;
  for (const [from, to] of ranges()) {
    const left = Math.max(bbox.left, chart.valToPos(from, "x", true));
    const right = Math.min(bbox.left + bbox.width, chart.valToPos(to, "x", true));
    if (right > bbox.left && left < bbox.left + bbox.width) ctx.fillRect(left, bbox.top, Math.max(2, right - left), bbox.height);
  }
  ctx.restore();
};

/** Maximum number of samples that are drawn as dots. */
const MAX_DOTS = 100;

/** Samples over time: the minimum and the maximum of each column. */
export class Series {
  constructor(figure, zoom) {
    this.figure = figure;
    this.zoom = zoom;
    this.chart = new Chart(figure, 250);
    this.ranges = [];
    const { place } = this.chart;
    place.tabIndex = 0;
    place.role = "group";
    place.ariaLabel = "Samples over time. Plus and minus zoom, the arrow keys move, Home shows the whole frame.";
    place.addEventListener("keydown", (event) => this.move(event));
  }

  /** Zooms and moves with the keys. */
  move(event) {
    if (!this.shown || event.ctrlKey || event.metaKey || event.altKey) return;
    const { first, points, frame_points: all } = this.shown;
    const wanted = { "+": points / 2, "=": points / 2, "-": points * 2, ArrowLeft: points, ArrowRight: points, Home: all }[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    const width = Math.max(2, Math.round(wanted));
    if (width >= all) { this.zoom(null); return; }
    const step = { ArrowLeft: -points / 4, ArrowRight: points / 4 }[event.key] ?? (points - width) / 2;
    const from = Math.max(0, Math.min(all - width, Math.round(first + step)));
    this.zoom(from, from + width);
  }

  update(frame) {
    const { axis, first, points, data } = frame;
    const columns = data.min.length;
    const [factor, unit] = axis.rate > 0 ? axisUnit((first + points) / axis.rate, "s") : [1, "samples"];
    const scale = axis.rate > 0 ? factor / axis.rate : 1;
    // A column of several samples is shown in its middle.
    const middle = (i) => (columns === points ? first + i : first + (i + .5) * points / columns);
    const lines = [Array.from({ length: columns }, (_, i) => middle(i) * scale), listed(data.max), listed(data.min)];
    if (data.min_im) lines.push(listed(data.max_im), listed(data.min_im));
    this.shown = frame;
    this.ranges = frame.missing.map(([from, to]) => [from * scale, to * scale]);
    this.scale = scale;
    const isExact = columns === points;
    // Without columns of several samples, the minimum is the maximum.
    if (isExact) for (const at of data.min_im ? [4, 2] : [2]) lines.splice(at, 1);
    const hasDots = points <= MAX_DOTS;
    const key = [unit, lines.length, hasDots, frame.ring].join();
    const line = (name, stroke) => drawn(name, stroke, { points: { show: hasDots, size: 5, fill: stroke } });
    const pair = (name, stroke) => (isExact ? [line(name, stroke)] : [line(`${name} max`, stroke), line(`${name} min`, stroke)]);
    this.chart.show(key, lines, () => ({
      axes: axes(`time in the frame (${unit})`, "value"),
      scales: { x: { time: false } },
      cursor: { drag: { x: true, y: false, setScale: false } },
      series: [
        { label: unit, value: (_, value) => number(value) },
        ...pair(data.min_im ? "real" : "value", colour("accent")),
        ...(data.min_im ? pair("imag", colour("second")) : []),
      ],
      bands: isExact ? [] : [{ series: [1, 2], fill: colour("band") }, ...(data.min_im ? [{ series: [3, 4], fill: colour("second-band") }] : [])],
      hooks: {
        drawClear: [shade(() => this.ranges)],
        setSelect: [(chart) => {
          const { left, width } = chart.select;
          if (width < 4) return;
          const point = (position) => Math.round(chart.posToVal(position, "x") / this.scale);
          chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          this.zoom(point(left), point(left + width));
        }],
        ready: [(chart) => { chart.over.addEventListener("dblclick", () => this.zoom(null)); }],
      },
    }));
    const whole = points === frame.frame_points ? "drag to zoom" : `points ${first} to ${first + points} of ${frame.frame_points}, double-click for all`;
    caption(this.figure, `Samples over time (${whole})`);
  }

  clear() { this.chart.clear(); }
}

/** Power over frequency: of the newest frame, the mean, and the maximum, over a waterfall. */
export class Spectrum {
  constructor(figure) {
    this.figure = figure;
    this.chart = new Chart(figure, 260);
    this.waterfall = new Waterfall(figure.querySelector(".waterfall"));
    this.reset();
  }

  reset() {
    this.count = 0;
    this.mean = this.hold = null;
  }

  /** Adds the spectrum of one frame to the mean and the maximum. */
  add(power) {
    if (this.mean?.length !== power.length) {
      this.reset();
      this.mean = new Float64Array(power.length);
      this.hold = new Float64Array(power.length);
      this.counts = new Uint32Array(power.length);
    }
    this.count += 1;
    power.forEach((value, i) => {
      if (Number.isNaN(value)) return;
      this.counts[i] += 1;
      this.mean[i] += (value - this.mean[i]) / this.counts[i];
      this.hold[i] = Math.max(this.hold[i], value);
    });
  }

  update(frame, added, { log }) {
    const power = frame.data.spectrum ?? frame.data.waterfall;
    const columns = power.length;
    const { values: frequency, unit } = frequencies(frame, columns);
    const isDecibel = Boolean(frame.spectrum) || log;
    const level = isDecibel ? decibel : (value) => value;
    const lines = [frequency, ...[power, this.mean, this.hold].map((values) => Array.from(values, (value, i) => {
      const shown = level(value);
      return Number.isNaN(shown) || !this.counts[i] ? null : Math.max(shown, -399);
    }))];
    this.range(lines, isDecibel);
    const reference = !frame.spectrum || frame.full_scale === 1 ? "dB" : "dBFS";
    const shownLevel = (value) => `${number(value)}${isDecibel ? ` ${reference}` : ""}`;
    this.levels = `dark: ${shownLevel(this.low)}, bright: ${shownLevel(this.high)}`;
    const key = [unit, isDecibel, reference, frame.ring].join();
    this.chart.show(key, lines, () => ({
      axes: axes(`frequency (${unit})`, isDecibel ? reference : "power"),
      scales: { x: { time: false }, y: { range: () => [this.low, this.high] } },
      series: [{ label: unit, value: (_, value) => number(value) }, drawn("now", colour("accent")), drawn("mean", colour("second"), { width: 2 }), drawn("maximum", colour("hold"))],
      hooks: { draw: [({ bbox }) => this.waterfall.align(bbox.left / devicePixelRatio, bbox.width / devicePixelRatio)] },
    }));
    const [at, , mean] = lines;
    const peak = mean.reduce((best, value, i) => (value !== null && (best === null || value > mean[best]) ? i : best), null);
    const where = peak === null ? "" : `, peak ${isDecibel ? `${mean[peak].toFixed(1)} ${reference}` : number(mean[peak])} at ${unit === "bins" ? `bin ${number(at[peak])}` : `${number(at[peak])} ${unit}`}`;
    caption(this.figure, `Spectrum (mean of ${counted(this.count, "frame")}${where})`);
    this.waterfall.update(added.map((values) => values.map(level)), columns, this.low, this.high);
  }

  /** Chooses the range of the levels: it grows immediately and shrinks when 5 dB become unused. */
  range([, now, mean, hold], isDecibel) {
    const finite = (values) => values.filter((value) => value !== null && value > -300);
    const sorted = Float64Array.from(finite(mean)).sort();
    if (!sorted.length) { [this.low, this.high] = [0, 1]; return; }
    const top = Math.max(...finite(hold)), bottom = sorted[Math.floor(sorted.length * .02)];
    if (isDecibel) {
      [this.low, this.high] = [Math.max(5 * Math.floor((bottom - 8) / 5), 5 * Math.ceil(top / 5) - 160), 5 * Math.ceil((top + 2) / 5)];
    } else {
      [this.low, this.high] = [Math.min(0, bottom), top * 1.05 || 1];
    }
  }

  /** Returns the levels that the chart shows, for tests: frequencies and the lines now, mean and maximum. */
  shown() { return this.chart.data; }

  clear() {
    this.chart.clear();
    this.reset();
    this.waterfall.clear();
  }
}

/** Phase over frequency of complex bins, such as visibilities. */
export class Phase {
  constructor(figure) {
    this.figure = figure;
    this.chart = new Chart(figure, 200);
  }

  update(frame) {
    const { phase } = frame.data;
    const { values, unit } = frequencies(frame, phase.length);
    const [horizontal, vertical] = axes(`frequency (${unit})`, "phase (degrees)");
    const dots = { paths: () => null, points: { show: true, size: 3, fill: colour("accent") } };
    this.chart.show([unit, frame.ring].join(), [values, listed(phase)], () => ({
      axes: [horizontal, { ...vertical, splits: () => [-180, -90, 0, 90, 180] }],
      scales: { x: { time: false }, y: { range: () => [-180, 180] } },
      series: [{ label: unit, value: (_, value) => number(value) }, drawn("phase", colour("accent"), dots)],
    }));
    caption(this.figure, `Phase of channel ${frame.channel}`);
  }

  clear() { this.chart.clear(); }
}

/** Spectra over time: the newest row is on top, and missing values are grey. */
class Waterfall {
  constructor(canvas) {
    this.canvas = canvas;
    this.rows = [];
    this.range = "";
    onScheme(() => { this.range = ""; });
  }

  clear() {
    this.rows = [];
    this.range = "";
  }

  /** Puts the waterfall below the plot of the chart, in CSS pixels. */
  align(left, width) {
    this.canvas.style.marginLeft = `${left}px`;
    this.canvas.style.width = `${width}px`;
  }

  update(added, columns, low, high) {
    const { canvas } = this;
    // Two rows per CSS pixel show a longer time.
    const height = 2 * Math.round(canvas.clientHeight) || 400;
    this.rows.unshift(...added.toReversed());
    this.rows.length = Math.min(this.rows.length, height);
    const range = [low, high, columns, height].join();
    const context = canvas.getContext("2d");
    if (range !== this.range) {
      // Other levels or columns: paint all rows again.
      [canvas.width, canvas.height] = [columns, height];
      this.rows = this.rows.filter((row) => row.length === columns);
      this.put(context, this.rows, 0, columns, low, high);
      this.range = range;
    } else if (added.length) {
      context.drawImage(canvas, 0, added.length);
      this.put(context, this.rows.slice(0, added.length), 0, columns, low, high);
    }
  }

  put(context, rows, top, columns, low, high) {
    rows.forEach((row, i) => {
      const image = context.createImageData(columns, 1);
      paint(row, low, high, image.data);
      context.putImageData(image, 0, top + i);
    });
  }
}

/** Name of a bin of the kernel `stats`. */
const BIN = /^hist_\d+$/;

/** Returns the histogram that a frame of named values contains; `null` without one. Its bins are numbered. */
export const binsOf = ({ axis, data }) => {
  if (axis.kind !== "fields" || !data.values) return null;
  const counts = [...data.values].filter((_, i) => BIN.test(axis.names[i] ?? ""));
  return counts.length ? counts : null;
};

/** How often each value occurs. Values at the limits of the converter are red. */
export class Histogram {
  constructor(figure) {
    this.figure = figure;
    this.chart = new Chart(figure, 200);
  }

  update(frame, { log }) {
    const bins = binsOf(frame);
    if (bins) this.showBins(frame, bins, log);
    else this.showValues(frame, log);
  }

  /** Shows the bins of the kernel `stats`. */
  showBins(frame, counts, log) {
    this.draw(frame.ring, counts, { start: -.5, step: 1, label: "bin", log }, () => false);
    const total = counts.reduce((sum, count) => sum + (Number.isNaN(count) ? 0 : count), 0);
    caption(this.figure, `Histogram of channel ${frame.channel}: ${total.toLocaleString()} values in ${counted(counts.length, "bin")}`);
    const note = document.getElementById("clipping");
    note.classList.remove("bad");
    setText(note, "");
  }

  showValues(frame, log) {
    const { start, step, low, high, count, min, max, mean, rms, not_finite: notFinite, low_limit: lowLimit, high_limit: highLimit } = frame.histogram;
    const counts = frame.data.histogram;
    this.draw(frame.ring, counts, { start, step, label: "value", log }, (i) => (i === 0 && low > 0) || (i === counts.length - 1 && high > 0));
    caption(this.figure, `Histogram of ${count.toLocaleString()} values`);
    const clipped = low + high;
    const note = document.getElementById("clipping");
    note.classList.toggle("bad", clipped > 0);
    const limits = highLimit == null ? "" : lowLimit == null ? ` the limit ${number(highLimit)}` : ` the limits ${number(lowLimit)} and ${number(highLimit)}`;
    setText(note, [
      clipped ? `clipped: ${counted(clipped, "value")} at${limits}, ${(100 * clipped / count).toPrecision(2)} %` : limits && `no value at${limits}`,
      `minimum ${number(min)}, maximum ${number(max)}, mean ${number(mean)}, rms ${number(rms)}`,
      notFinite ? `${notFinite.toLocaleString()} values are not finite` : "",
    ].filter(Boolean).join(" · "));
  }

  /** Draws `counts` as bars; those for which `isClipped` returns true are red. */
  draw(ring, counts, { start, step, label, log }, isClipped) {
    this.step = step;
    const shown = (value) => (log && value === 0 ? null : value);
    const lines = [
      Array.from(counts, (_, i) => start + (i + .5) * step),
      Array.from(counts, (value, i) => (isClipped(i) ? null : shown(value))),
      Array.from(counts, (value, i) => (isClipped(i) ? shown(value) : null)),
    ];
    const bars = uPlot.paths.bars({ size: [1, Infinity], gap: 0 });
    this.chart.show([log, label, ring].join(), lines, () => ({
      axes: axes(label, "count"),
      scales: { x: { time: false, range: (_, from, to) => [from - this.step / 2, to + this.step / 2] }, y: log ? { distr: 3 } : { range: (_, from, to) => [0, to * 1.05 || 1] } },
      legend: { show: false },
      series: [{}, drawn("values", colour("accent"), { fill: colour("accent"), width: 0, paths: bars }), drawn("clipped", colour("bad"), { fill: colour("bad"), width: 0, paths: bars })],
    }));
  }

  clear() { this.chart.clear(); }
}

/** Named values, such as the statistics of a channel. */
export class Values {
  constructor(figure) {
    this.figure = figure;
    this.place = figure.querySelector(".plot");
  }

  update(frame) {
    caption(this.figure, `Values of channel ${frame.channel}`);
    const rows = [...frame.data.values]
      .map((value, i) => [frame.axis.names[i] ?? String(i), number(Number.isNaN(value) ? null : value)])
      .filter(([name]) => !BIN.test(name));
    const table = element("table");
    for (const [name, value] of rows) {
      const line = element("tr", undefined, table);
      element("th", name, line).scope = "row";
      element("td", value, line);
    }
    this.place.replaceChildren(table);
  }

  clear() { this.place.replaceChildren(); }
}
