// The view "Strip": whether the data of each source is complete, in the last 10 minutes and 24 hours.
//
// Each canvas shows one column per bucket of `/history`. The height is the rate of the packets that the sender sent. The part
// of the column that was lost has the colour of the cause, and a minimum size, so that one lost packet is visible beside a
// million.
import { clock, colour, element, fitted, onScheme, scale, setText, sum } from "./common.js";

const SPANS = [
  { key: "10m", title: "last 10 minutes", poll: 2000, tick: 120 },
  { key: "24h", title: "last 24 hours", poll: 60_000, tick: 4 * 3600 },
];
const MARKS = { start: "daq started", stop: "daq stopped", epoch: "sender restarted (new epoch)", restart: "daq restarted" };
/** Height of the row of marks above the columns, in CSS pixels. */
const MARKS_HEIGHT = 12;
/** Minimum height of lost, rejected and duplicate packets, in CSS pixels. */
const MIN_LOSS = 5;
/** Minimum width of these packets, in CSS pixels. */
const LOSS_WIDTH = 3;
/** Maximum number of rows of the table of losses. */
const MAX_ROWS = 50;

/** Rows by the name of their source. */
const rows = new Map();
const histories = {};
let timers = [];

const causeColour = (cause) => colour(cause) || colour("other");

/** Returns what one bucket contains; `null` if daq did not run. */
export const bucket = (source, index) => {
  if (source.delivered?.[index] == null) return null;
  const at = (counts) => Object.fromEntries(Object.entries(counts ?? {}).map(([name, values]) => [name, values[index] ?? 0]).filter(([, count]) => count > 0));
  return {
    delivered: source.delivered[index],
    bytes: source.bytes?.[index] ?? 0,
    lost: at(source.lost),
    rejected: source.rejected?.[index] ?? 0,
    duplicates: source.duplicates?.[index] ?? 0,
    blocked: at(source.blocked),
  };
};

const joined = (counts) => Object.entries(counts).map(([name, count]) => `${name} ${count.toLocaleString()}`).join(", ");

/** Describes the losses of one bucket, with the readers that blocked the ring. */
const losses = ({ lost, rejected, duplicates, blocked }) => [
  sum(lost) ? `lost ${joined(lost)}` : "",
  sum(blocked) ? `blocked by ${Object.entries(blocked).map(([reader, count]) => `${reader} (${count.toLocaleString()})`).join(", ")}` : "",
  rejected ? `rejected ${rejected.toLocaleString()}` : "",
  duplicates ? `duplicates ${duplicates.toLocaleString()}` : "",
].filter(Boolean).join("; ");

const describe = (history, name, index) => {
  const value = bucket(history.sources[name], index);
  const at = clock(history.start + index * history.step, history.step < 60 ? 8 : 5);
  const marks = (history.marks ?? []).filter((mark) => belongs(mark, name) && Math.floor((mark.at - history.start) / history.step) === index);
  const events = marks.map((mark) => `; ${mark.text ?? MARKS[mark.kind] ?? mark.kind}`).join("");
  if (!value) return `${at} UTC: daq did not run${events}`;
  const rates = `${scale(value.delivered / history.step, `${unitOf(history, name)}/s`)}, ${scale(value.bytes / history.step, "B/s")}`;
  return `${at} UTC: ${rates}; ${losses(value) || "nothing lost"}${events}`;
};

/** What a source counts: packets, or frames. */
const unitOf = (history, name) => history.sources[name].unit ?? "packets";

const belongs = (mark, name) => mark.source === undefined || mark.source === null || mark.source === name;

/** Merges the buckets of one column of pixels. */
const column = (source, first, end) => {
  const total = { buckets: 0, delivered: 0, lost: {}, rejected: 0, duplicates: 0 };
  for (let index = first; index < end; index += 1) {
    const delivered = source.delivered?.[index];
    if (delivered == null) continue;
    total.buckets += 1;
    total.delivered += delivered;
    for (const [cause, values] of Object.entries(source.lost ?? {})) {
      if (values[index]) total.lost[cause] = (total.lost[cause] ?? 0) + values[index];
    }
    total.rejected += source.rejected?.[index] ?? 0;
    total.duplicates += source.duplicates?.[index] ?? 0;
  }
  return total;
};

const draw = (canvas, history, name, selected) => {
  const { context, width, height } = fitted(canvas);
  const source = history.sources[name];
  const buckets = source.delivered?.length ?? 0;
  context.clearRect(0, 0, width, height);
  if (!buckets || !width) return;
  context.fillStyle = colour("back");
  context.fillRect(0, 0, width, height);
  const columns = Math.min(buckets, Math.floor(width));
  const pitch = width / columns;
  // Columns begin at whole pixels, so that neighbours do not overlap.
  const snap = (position) => Math.round(position * devicePixelRatio) / devicePixelRatio;
  const totals = Array.from({ length: columns }, (_, i) => column(source, Math.floor(i * buckets / columns), Math.floor((i + 1) * buckets / columns)));
  const rate = (total) => total.buckets ? (total.delivered + sum(total.lost)) / total.buckets : 0;
  const top = Math.max(...totals.map(rate));
  const base = height;
  const usable = height - MARKS_HEIGHT;
  const good = colour("good"), missing = colour("missing");
  const tall = (count, total) => (count && top ? count / total.buckets / top * usable : 0);
  const paint = (i, style, y, high, wide = 0) => {
    const x = snap(i * pitch);
    context.fillStyle = style;
    context.fillRect(x, y, Math.max(wide, snap((i + 1) * pitch) - x), high);
  };
  // daq did not run: a thin line instead of an empty column.
  totals.forEach((total, i) => (total.buckets ? paint(i, good, base - tall(total.delivered, total), tall(total.delivered, total)) : paint(i, missing, base - 2, 2)));
  // Losses are drawn over their neighbours, because they are wider than a column.
  totals.forEach((total, i) => {
    let y = base - tall(total.delivered + sum(total.lost), total);
    const lost = Object.entries(total.lost);
    // Small losses have their minimum height, also in a column that is smaller than this.
    y = Math.min(y, base - MIN_LOSS * lost.length);
    for (const [cause, count] of lost) {
      const part = Math.max(MIN_LOSS, tall(count, total));
      paint(i, causeColour(cause), y, part, LOSS_WIDTH);
      y += part;
    }
    let bottom = base;
    for (const kind of ["rejected", "duplicates"]) {
      if (!total[kind]) continue;
      const part = Math.max(MIN_LOSS, Math.min(usable, tall(total[kind], total)));
      bottom -= part;
      paint(i, causeColour(kind), bottom, part, LOSS_WIDTH);
    }
  });
  const xOf = (time) => (time - history.start) / history.step / buckets * width;
  const { tick } = SPANS.find(({ key }) => key === canvas.dataset.span);
  context.fillStyle = colour("dim");
  context.strokeStyle = colour("dim");
  context.font = "10px system-ui, sans-serif";
  const end = history.start + buckets * history.step;
  for (let time = Math.ceil(history.start / tick) * tick; time < end; time += tick) {
    const x = xOf(time);
    context.globalAlpha = .25;
    context.fillRect(x, MARKS_HEIGHT, 1, usable);
    context.globalAlpha = 1;
    if (x < width - 30 && !(history.marks ?? []).some((mark) => belongs(mark, name) && xOf(mark.at) > x - 8 && xOf(mark.at) < x + 34)) context.fillText(clock(time, 5), x + 2, 9);
  }
  for (const mark of history.marks ?? []) {
    if (!belongs(mark, name)) continue;
    const x = xOf(mark.at);
    context.strokeStyle = context.fillStyle = colour("text");
    context.setLineDash(mark.kind === "epoch" ? [3, 2] : []);
    context.beginPath();
    context.moveTo(x + .5, 0);
    context.lineTo(x + .5, height);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    if (mark.kind === "stop") context.rect(x - 4, 1, 8, 8);
    else if (mark.kind === "start") { context.moveTo(x, 0); context.lineTo(x + 9, 5); context.lineTo(x, 10); }
    else { context.moveTo(x, 0); context.lineTo(x + 5, 5); context.lineTo(x, 10); context.lineTo(x - 5, 5); }
    context.fill();
  }
  if (selected !== null) {
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    context.strokeRect((selected + .5) / buckets * width - 2, 1, 4, height - 2);
    context.lineWidth = 1;
  }
  canvas.dataset.top = totals.some((total) => total.buckets) ? top / history.step : "";
};

class Row {
  constructor(name, parent) {
    this.name = name;
    this.selected = {};
    this.root = element("article", undefined, parent, "strip");
    element("h3", name, this.root);
    this.sentence = element("p", "", this.root, "sentence");
    const spans = element("div", undefined, this.root, "spans");
    this.canvases = {};
    this.captions = {};
    for (const { key, title } of SPANS) {
      const figure = element("figure", undefined, spans);
      const caption = element("figcaption", undefined, figure);
      element("span", `${title}, UTC`, caption);
      this.captions[key] = element("span", "", caption);
      const canvas = element("canvas", undefined, figure);
      canvas.tabIndex = 0;
      canvas.dataset.span = key;
      canvas.dataset.source = name;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${name}, ${title}: rate and losses. The arrow keys move through the time.`);
      canvas.addEventListener("pointermove", (event) => this.select(key, event.offsetX / canvas.clientWidth));
      canvas.addEventListener("pointerdown", (event) => this.select(key, event.offsetX / canvas.clientWidth));
      canvas.addEventListener("pointerleave", () => this.unselect(key));
      canvas.addEventListener("keydown", (event) => this.move(key, event));
      canvas.addEventListener("blur", () => this.unselect(key));
      this.canvases[key] = canvas;
      new ResizeObserver(() => this.draw(key)).observe(canvas);
    }
    this.output = element("output", "", this.root);
    this.legend = element("ul", undefined, this.root, "legend");
    this.details = element("details", undefined, this.root);
    this.summary = element("summary", "", this.details);
    this.table = element("table", undefined, element("div", undefined, this.details, "scroll"));
  }

  length(key) {
    return histories[key]?.sources[this.name]?.delivered?.length ?? 0;
  }

  select(key, fraction) {
    const length = this.length(key);
    if (!length) return;
    this.selected = { [key]: Math.min(length - 1, Math.max(0, Math.floor(fraction * length))) };
    this.read();
  }

  unselect(key) {
    delete this.selected[key];
    this.read();
  }

  move(key, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60, Home: -Infinity, End: Infinity }[event.key];
    const length = this.length(key);
    if (step === undefined || !length) return;
    event.preventDefault();
    const from = this.selected[key] ?? length - 1;
    this.selected = { [key]: Math.min(length - 1, Math.max(0, from + step)) };
    this.read();
  }

  read() {
    const [[key, index] = []] = Object.entries(this.selected);
    setText(this.output, key ? describe(histories[key], this.name, index) : "");
    for (const { key: span } of SPANS) this.draw(span);
  }

  draw(key) {
    const history = histories[key];
    if (!history?.sources[this.name]) return;
    draw(this.canvases[key], history, this.name, this.selected[key] ?? null);
    const { top } = this.canvases[key].dataset;
    const unit = unitOf(history, this.name);
    setText(this.captions[key], !top ? "no complete column yet" : Number(top) ? `max ${scale(Number(top), `${unit}/s`)}` : `no ${unit}`);
  }

  update(key) {
    const source = histories[key].sources[this.name];
    if (!source) return;
    if (key === "10m" && source.sentence) {
      setText(this.sentence, source.sentence);
      const isLosing = source.complete_since == null && Object.values(source.lost ?? {}).some((counts) => counts.some((count) => count > 0));
      this.sentence.classList.toggle("bad", isLosing);
    }
    this.draw(key);
    if (key === "10m") this.list(histories[key], source);
    this.updateLegend();
  }

  /** Lists the causes of both spans, with the readers that blocked. */
  updateLegend() {
    const causes = {}, blocked = {};
    for (const { key } of SPANS) {
      const source = histories[key]?.sources[this.name];
      const add = (into, counts) => { for (const [name, values] of Object.entries(counts ?? {})) into[name] = Math.max(into[name] ?? 0, values.reduce((a, b) => a + (b ?? 0), 0)); };
      add(causes, source?.lost);
      add(blocked, source?.blocked);
      if (source) add(causes, { rejected: source.rejected ?? [], duplicates: source.duplicates ?? [] });
    }
    const shown = Object.entries(causes).filter(([, count]) => count > 0);
    const readers = Object.entries(blocked).filter(([, count]) => count > 0).map(([reader, count]) => `${reader} ${count.toLocaleString()}`);
    const items = [["good", "delivered"], ...shown.map(([cause, count]) => [cause, `${cause} ${count.toLocaleString()}${cause === "ring_full" && readers.length ? ` (blocked by ${readers.join(", ")})` : ""}`])];
    this.legend.replaceChildren(...items.map(([key, text]) => {
      const item = element("li");
      element("i", undefined, item).style.background = causeColour(key);
      item.append(text);
      return item;
    }));
  }

  /** The losses as a table, for screen readers and for copying. */
  list(history, source) {
    const found = [];
    for (let index = source.delivered.length - 1; index >= 0 && found.length < MAX_ROWS; index -= 1) {
      const value = bucket(source, index);
      const text = value && losses(value);
      if (text) found.push([clock(history.start + index * history.step), text]);
    }
    this.details.hidden = !found.length;
    setText(this.summary, `Seconds with losses in the last 10 minutes: ${found.length === MAX_ROWS ? `the newest ${MAX_ROWS}` : found.length}`);
    if (!this.details.open) return;
    const head = element("tr");
    for (const title of ["UTC", "what"]) element("th", title, head);
    this.table.replaceChildren(head, ...found.map((cells) => {
      const line = element("tr");
      for (const cell of cells) element("td", cell, line);
      return line;
    }));
  }
}

const poll = async (span) => {
  const parent = document.getElementById("strips");
  try {
    const response = await fetch(`/history?span=${span.key}`, { cache: "no-store" });
    if (!response.ok) throw new Error(await response.text());
    histories[span.key] = await response.json();
    for (const name of Object.keys(histories[span.key].sources)) {
      if (!rows.has(name)) rows.set(name, new Row(name, parent));
      rows.get(name).update(span.key);
    }
  } catch (error) {
    if (!rows.size) setText(parent, `No history: ${error.message}`);
  }
};

const redraw = () => { for (const row of rows.values()) { row.read(); row.updateLegend(); } };
onScheme(redraw);

export const start = () => {
  for (const span of SPANS) {
    const next = async () => {
      await poll(span);
      if (timers.includes(entry)) entry.id = setTimeout(next, span.poll);
    };
    const entry = { id: 0 };
    timers.push(entry);
    next();
  }
};

export const stop = () => {
  for (const { id } of timers) clearTimeout(id);
  timers = [];
};
