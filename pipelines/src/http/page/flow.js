// The view "Flow": the graph of the plan with live rates, fill levels, lags and latencies, and the bottleneck.
import { counted, duration, element, scale, setText, sum } from "./common.js";

/** Rates are computed over this number of responses of `/status`. */
const WINDOW = 4;
/** A reader that lags by more than this share of its ring is a bottleneck. */
const LAGGING = 0.5;

const recent = [];
let remedies = { metrics: {}, causes: {} };
/** Cards by the identifier of their node. */
let cards = new Map();
let edges = [];
let shape = "";

/** Returns the nodes of the plan by identifier, each with its layer, and the edges between them. */
export const graph = (plan) => {
  const nodes = new Map();
  const links = [];
  const add = (kind, name, detail, reader) => nodes.set(`${kind} ${name}`, { kind, name, detail, reader, layer: 0 });
  for (const ring of plan.rings) add("ring", ring.name, ring.placement);
  for (const source of plan.sources) {
    add("source", source.name, source.driver);
    links.push([`source ${source.name}`, `ring ${source.ring}`]);
  }
  for (const copy of plan.copies) {
    add("copy", copy.to, `copy to ${copy.to}`, copy.name);
    links.push([`ring ${copy.from}`, `copy ${copy.to}`], [`copy ${copy.to}`, `ring ${copy.to}`]);
  }
  for (const kernel of plan.kernels) {
    add("kernel", kernel.name, kernel.use, kernel.name);
    links.push([`ring ${kernel.input}`, `kernel ${kernel.name}`], [`kernel ${kernel.name}`, `ring ${kernel.output}`]);
  }
  for (const sink of plan.sinks) {
    add("sink", sink.name, sink.driver, sink.name);
    links.push([`ring ${sink.input}`, `sink ${sink.name}`]);
  }
  // The longest path decides the layer. The plan has no cycles, so that this ends after one pass per node.
  for (let pass = 0; pass < nodes.size; pass += 1) {
    for (const [from, to] of links) nodes.get(to).layer = Math.max(nodes.get(to).layer, nodes.get(from).layer + 1);
  }
  return { nodes, links };
};

/** Returns how much a number of the report grew per second; `null` if there is only one response. */
const rate = (read) => {
  const [old, now] = [recent[0], recent.at(-1)];
  const seconds = now.seconds - old.seconds;
  if (!(seconds > 0)) return null;
  return ((read(now) ?? 0) - (read(old) ?? 0)) / seconds;
};

/** Returns the bottleneck: the reader furthest downstream that blocks its ring or lags by half of it. */
export const bottleneck = (report, nodes, rateOf) => {
  let worst = null;
  for (const node of nodes.values()) {
    const reader = node.reader && report.readers[node.reader];
    if (!reader) continue;
    const capacity = report.rings[reader.ring]?.capacity || 1;
    const blocked = rateOf((status) => status.readers[node.reader]?.blocked) ?? 0;
    // A sink without a guarantee that cannot write discards frames.
    const lost = ({ overrun, discarded } = {}) => overrun + discarded;
    const overrun = rateOf((status) => lost(status.readers[node.reader])) || 0;
    const lag = reader.pending / capacity;
    if (blocked <= 0 && overrun <= 0 && lag < LAGGING) continue;
    const found = { node, ring: reader.ring, blocked, overrun, lag, rank: [node.layer, lag] };
    if (!worst || found.rank[0] > worst.rank[0] || (found.rank[0] === worst.rank[0] && lag > worst.lag)) worst = found;
  }
  return worst;
};

/** Describes latencies: those of the last seconds or, if nothing was measured in these seconds, those since the start. */
const latency = (stage, values) => {
  const [median, most] = values?.recent_p50_us != null ? [values.recent_p50_us, values.recent_p99_us] : [values?.p50_us, values?.p99_us];
  return median == null ? "" : `${stage}: p50 ${duration(median)}, p99 ${duration(most)}`;
};

const lines = (node, report) => {
  const { name } = node;
  const found = [];
  const reader = node.reader && report.readers[node.reader];
  if (reader) {
    const frames = rate((status) => status.readers[node.reader]?.read);
    found.push(`${frames === null ? "" : `${scale(frames, "frames/s")}, `}lag ${reader.pending.toLocaleString()}`, latency("ring to done", reader.latency));
    const overrun = reader.overrun + reader.discarded + reader.dropped_incomplete;
    if (overrun) found.push([`${counted(overrun, "frame")} not read`, "bad"]);
    if (reader.blocked) found.push([`blocked ${reader.ring} for ${counted(reader.blocked, "frame")}`, "bad"]);
  }
  if (node.kind === "source") {
    const source = report.sources[name];
    const bytes = rate((status) => status.sources[name]?.bytes);
    const packets = rate((status) => status.sources[name]?.delivered);
    if (bytes !== null) found.push(scale(bytes * 8, "bit/s"), scale(packets, "packets/s"));
    const lost = sum(source?.lost);
    if (lost) found.push([`lost ${counted(lost, "packet")} (${Object.entries(source.lost).map(([cause, count]) => `${cause} ${count.toLocaleString()}`).join(", ")})`, "bad"]);
    if (source?.silent) found.push(["silent", "bad"]);
  }
  if (node.kind === "ring") {
    const ring = report.rings[name];
    const frames = rate((status) => status.rings[name]?.published);
    if (frames !== null) found.push(scale(frames, "frames/s"));
    found.push(`${fill(name, report).toLocaleString()} of ${ring.capacity.toLocaleString()} slots, at most ${ring.high_water.toLocaleString()}`);
    if (ring.ring_full) found.push([`${counted(ring.ring_full, "frame")} refused`, "bad"]);
    if (ring.newest_frame_age_ns != null) found.push(`newest frame: ${duration(ring.newest_frame_age_ns / 1e3)} ago`);
    found.push(latency("arrival to ring", ring.latency));
  }
  if (node.kind === "kernel") {
    const kernel = report.kernels[name];
    if (kernel?.failed) found.push([`${counted(kernel.failed, "frame")} failed`, "bad"]);
  }
  if (node.kind === "sink") {
    const bytes = rate((status) => status.sinks[name]?.bytes);
    if (bytes !== null && report.sinks[name]?.bytes) found.push(scale(bytes, "B/s"));
    const { full, dropped, lost } = report.sinks[name] ?? {};
    if (full) found.push(["accepts no frames", "bad"]);
    if (dropped) found.push([`${counted(dropped, "frame")} dropped`, "bad"]);
    if (lost) found.push([`${counted(lost, "frame")} lost`, "bad"]);
  }
  return found.filter(Boolean);
};

/** Returns the number of slots of a ring that its slowest reader has not freed. Other processes may lag by more than the ring. */
export const fill = (name, report) => {
  const readers = Object.values(report.readers).filter((reader) => reader.ring === name && reader.process == null);
  return Math.max(0, ...readers.map((reader) => reader.pending));
};

const build = (plan, nodes, links) => {
  const root = document.getElementById("graph");
  const svg = root.querySelector("svg");
  root.replaceChildren(svg);
  cards = new Map();
  const layers = Math.max(...[...nodes.values()].map((node) => node.layer)) + 1;
  for (let layer = 0; layer < layers; layer += 1) {
    const list = element("ul", undefined, root);
    for (const [id, node] of nodes) {
      if (node.layer !== layer) continue;
      const card = element("li", undefined, list, `node ${node.kind}`);
      const title = element("h3", node.kind === "copy" ? "" : node.name, card);
      element("small", node.kind === "ring" ? ` ring @ ${node.detail}` : node.kind === "copy" ? node.detail : ` ${node.kind}, ${node.detail}`, title);
      const bar = node.kind === "ring" ? element("div", undefined, card, "fill") : null;
      if (bar) {
        bar.setAttribute("aria-hidden", "true");
        element("i", undefined, bar);
        element("b", undefined, bar);
      }
      // For screen readers, and for narrow screens, where edges cross cards.
      const inputs = links.filter(([, to]) => to === id).map(([from]) => nodes.get(from).name);
      if (inputs.length) element("p", `from ${inputs.join(", ")}`, card, "inputs");
      cards.set(id, { card, bar, text: element("div", undefined, card) });
    }
  }
  edges = links;
};

/** Draws the edges between the cards. On narrow screens the layers are below each other. */
const connect = () => {
  const root = document.getElementById("graph");
  const svg = root.querySelector("svg");
  const origin = root.getBoundingClientRect();
  const [left, top] = [origin.left - root.scrollLeft, origin.top - root.scrollTop];
  svg.setAttribute("width", root.scrollWidth);
  svg.setAttribute("height", root.scrollHeight);
  const vertical = getComputedStyle(root).flexDirection === "column";
  svg.replaceChildren(...edges.map(([from, to]) => {
    const a = cards.get(from).card.getBoundingClientRect();
    const b = cards.get(to).card.getBoundingClientRect();
    const path = document.createElementNS(svg.namespaceURI, "path");
    const [x1, y1, x2, y2] = vertical
      ? [(a.left + a.right) / 2 - left, a.bottom - top, (b.left + b.right) / 2 - left, b.top - top]
      : [a.right - left, (a.top + a.bottom) / 2 - top, b.left - left, (b.top + b.bottom) / 2 - top];
    const bend = vertical ? (y2 - y1) / 2 : (x2 - x1) / 2;
    const curve = vertical ? `C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}` : `C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
    const arrow = vertical ? `M${x2 - 4},${y2 - 6}L${x2},${y2}L${x2 + 4},${y2 - 6}` : `M${x2 - 6},${y2 - 4}L${x2},${y2}L${x2 - 6},${y2 + 4}`;
    path.setAttribute("d", `M${x1},${y1}${curve}${arrow}`);
    return path;
  }));
};

/** The sentence above the graph: the bottleneck with its remedy. */
const sentence = (report, worst) => {
  const place = document.getElementById("bottleneck");
  const parts = [];
  if (worst) {
    const name = element("strong", `${worst.node.kind} ${worst.node.name}`);
    const what = worst.blocked > 0
      ? `blocks ring ${worst.ring}, which refuses ${scale(worst.blocked, "frames/s")}`
      : worst.overrun > 0
        ? `loses ${scale(worst.overrun, "frames/s")} of ring ${worst.ring}`
        : `lags by ${Math.round(worst.lag * 100)} % of ring ${worst.ring}`;
    parts.push("Bottleneck: ", name, ` ${what}. ${remedies.metrics.daq_ring_full_frames_total ?? ""}`);
  } else {
    parts.push("Every reader keeps up.");
  }
  for (const name of Object.keys(report.sources)) {
    for (const cause of Object.keys(report.sources[name].lost)) {
      const lost = rate((status) => status.sources[name]?.lost[cause]);
      if (lost > 0 && cause !== "ring_full") parts.push(` Source `, element("strong", name), ` loses ${scale(lost, "packets/s")} (${cause}): ${remedies.causes[cause] ?? ""}`);
    }
  }
  place.replaceChildren(...parts);
  // Screen readers announce when another component becomes the bottleneck, not when a rate changes.
  setText(document.getElementById("bottleneck-live"), worst ? `Bottleneck: ${worst.node.kind} ${worst.node.name}` : "No bottleneck");
};

/** Shows a response of `/status`. */
export const update = ({ plan, report }) => {
  if (recent.length && report.seconds <= recent.at(-1).seconds) recent.length = 0;
  recent.push(report);
  if (recent.length > WINDOW) recent.shift();
  const { nodes, links } = graph(plan);
  const next = [...nodes.keys()].join();
  if (next !== shape) build(plan, nodes, links);
  shape = next;
  const worst = bottleneck(report, nodes, rate);
  for (const [id, node] of nodes) {
    const { card, bar, text } = cards.get(id);
    card.classList.toggle("is-bottleneck", worst?.node === node);
    if (bar) {
      const { capacity, high_water: high } = report.rings[node.name];
      const share = fill(node.name, report) / capacity;
      bar.firstChild.style.width = `${100 * share}%`;
      bar.lastChild.style.left = `calc(${100 * Math.min(1, high / capacity)}% - 2px)`;
      bar.classList.toggle("full", share >= LAGGING);
    }
    text.replaceChildren(...lines(node, report).map((line) => (Array.isArray(line) ? element("p", ...[line[0], undefined, line[1]]) : element("p", line))));
  }
  sentence(report, worst);
  connect();
};

export const start = async () => {
  recent.length = 0;
  try {
    remedies = await (await fetch("/page/remedies.json")).json();
  } catch { /* The page also works without remedies. */ }
};
addEventListener("resize", () => { if (cards.size) connect(); });
