// The view "Scope": the newest frames of a ring as curves, spectra, histograms and images.
import { element, scale, setText } from "./common.js";
import { Histogram, Picture, Series, Spectrum, Values } from "./panels.js";
import { read } from "./stream.js";

const SIZES = [256, 512, 1024, 2048, 4096, 8192];
/** Pause before the stream is requested again after an error, in milliseconds. */
const RETRY = 2000;
/** Keys of the form that the server reduces by, and that are kept for each ring. */
const KEYS = ["channel", "part", "size", "full_scale", "row"];
/** Checkbox of the form: levels of spectra and images, and counts, are logarithmic. */
const LOG = "log";

const figure = (name) => document.getElementById(`panel-${name}`);
const form = document.getElementById("scope-form");
const stateLine = document.getElementById("scope-state");
const freezeButton = document.getElementById("freeze");
let panels = null;
let stream = null;
let retry = null;
let frozen = false;
let zoomed = null;
let rings = "";
/** Frames that were received since the last repaint. */
let pending = [];
let last = null;
let received = [];
/** Number of the newest frame of the stream; a server can send a frame again when another page opens. */
let newest = -1;
/** Whether levels are logarithmic; `null` before the first frame of a ring without a saved choice. */
let log = null;

const make = () => {
  panels = {
    time: new Series(figure("time"), (from, to) => { zoomed = from === null ? null : [Math.max(0, from), Math.max(1, to - from)]; start(); }),
    spectrum: new Spectrum(figure("spectrum")),
    histogram: new Histogram(figure("histogram")),
    image: new Picture(figure("image")),
    values: new Values(figure("values")),
  };
  for (const size of SIZES) element("option", String(size), form.elements.size).selected = size === 1024;
  form.addEventListener("change", (event) => {
    const { name } = event.target;
    if (name === LOG) { log = event.target.checked; save(); repaint(); return; }
    if (name === "ring") restore();
    else save();
    zoomed = null;
    clear();
    start();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("reset").addEventListener("click", () => { panels.spectrum.reset(); });
  freezeButton.addEventListener("click", () => freeze(!frozen));
};

const clear = () => {
  last = null;
  received = [];
  for (const panel of Object.values(panels)) panel.clear();
};

const freeze = (wanted) => {
  frozen = wanted;
  freezeButton.setAttribute("aria-pressed", String(frozen));
  if (frozen) stop();
  else start();
};

const save = () => {
  const kept = Object.fromEntries(KEYS.map((key) => [key, form.elements[key].value]));
  kept[LOG] = form.elements[LOG].checked;
  localStorage.setItem(`scope ${form.elements.ring.value}`, JSON.stringify(kept));
};

const restore = () => {
  const kept = JSON.parse(localStorage.getItem(`scope ${form.elements.ring.value}`) ?? "{}");
  const defaults = { channel: "0", part: "", size: "1024", full_scale: "", row: "" };
  for (const key of KEYS) {
    const field = form.elements[key];
    const value = kept[key] ?? defaults[key];
    if (key === "part" && value && ![...field.options].some((option) => option.value === value)) element("option", value, field).value = value;
    field.value = value;
  }
  log = kept[LOG] ?? null;
};

const address = () => {
  const { ring } = form.elements;
  const query = new URLSearchParams(KEYS.map((key) => [key, form.elements[key].value]).filter(([, value]) => value !== ""));
  query.set("width", String(Math.max(200, Math.min(1200, figure("time").clientWidth || 800))));
  if (zoomed) { query.set("first", zoomed[0]); query.set("points", zoomed[1]); }
  return `/rings/${encodeURIComponent(ring.value)}/scope?${query}`;
};

const receive = (frame) => {
  if (frozen || !frame.arrays || frame.index === newest) return;
  newest = frame.index;
  if (!pending.length) requestAnimationFrame(repaint);
  pending.push(frame);
};

/** Shows the newest frame, and adds all received frames to the waterfall, the mean and the maximum. */
const repaint = () => {
  const frames = pending;
  pending = [];
  last = frames.at(-1) ?? last;
  if (!last || !panels) return;
  if (log === null) form.elements[LOG].checked = last.axis.kind === "frequency";
  else if (frames.length) form.elements[LOG].checked = log;
  log = form.elements[LOG].checked;
  const options = { log };
  const rows = [];
  for (const { data } of frames) {
    if (!data.waterfall) continue;
    panels.spectrum.add(data.spectrum ?? data.waterfall);
    const [count, columns] = data.waterfall.shape;
    for (let row = 0; row < count; row += 1) rows.push(data.waterfall.subarray(row * columns, (row + 1) * columns));
  }
  const { data } = last;
  const has = { time: data.min, spectrum: data.waterfall, histogram: data.histogram, image: data.image, values: data.values };
  for (const [name, panel] of Object.entries(panels)) {
    figure(name).hidden = !has[name];
    if (!has[name]) continue;
    if (name === "spectrum") {
      if (panels.spectrum.mean) panel.update(last, rows, options);
    } else {
      panel.update(last, options);
    }
  }
  describe(last, frames);
  fields(last);
};

/** The line with number, time and completeness of the newest frame. */
const describe = (frame, frames) => {
  const now = performance.now();
  received.push(...frames.map((one) => [now, one.index]));
  received = received.filter(([at]) => now - at < 3000);
  const [oldest, newest] = [received[0], received.at(-1)];
  const seconds = (newest?.[0] - oldest?.[0]) / 1000;
  const rates = seconds > .5 ? ` · shows ${((received.length - 1) / seconds).toFixed(1)} of ${scale((newest[1] - oldest[1]) / seconds, "frames/s")}` : "";
  const time = frame.clock === "none" ? "" : ` · ${new Date(frame.time_ms).toISOString().replace("T", " ").replace("Z", "")} (${frame.clock})`;
  const packets = frame.packets ? ` · ${frame.arrived} of ${frame.packets} packets` : "";
  setText(stateLine, `${frozen ? "frozen: " : ""}frame ${frame.sequence} · epoch ${frame.epoch}${time}${packets}${rates} · ${frame.complex ? "complex " : ""}${frame.type}`);
  stateLine.classList.toggle("bad", frame.packets > 0 && frame.arrived < frame.packets);
  const rows = frame.data.waterfall?.shape[0] ?? 0;
  setText(document.getElementById("waterfall-note"), rows > 1 ? `Newest on top; ${rows} rows per frame. Missing data is grey. Frames that are not shown have no row.` : "Newest frame on top. Missing data is grey. Frames that are not shown have no row.");
};

/** Shows the fields of the form that the ring has. */
const fields = (frame) => {
  const { channel, part, size, full_scale: fullScale, row } = form.elements;
  const show = (field, wanted) => { field.parentElement.hidden = !wanted; };
  channel.max = String(frame.channels - 1);
  show(channel, frame.channels > 1);
  show(part, frame.parts.length > 1);
  show(size, Boolean(frame.data.spectrum));
  show(fullScale, frame.axis.kind === "time" && frame.full_scale !== 1);
  show(row, frame.axis.kind === "time");
  if (part.options.length !== frame.parts.length + 1) {
    const chosen = part.value;
    part.replaceChildren(new Option("all", ""), ...frame.parts.map((name, i) => new Option(name, String(i))));
    part.value = chosen;
  }
};

/** Follows the list of rings. */
export const update = ({ plan }) => {
  const names = plan.rings.map(({ name }) => name);
  if (names.join() === rings) return;
  rings = names.join();
  const { ring } = form.elements;
  const wanted = ring.value || new URLSearchParams(location.hash.split("?")[1] ?? "").get("ring");
  ring.replaceChildren(...names.map((name) => new Option(name)));
  if (names.includes(wanted)) ring.value = wanted;
  restore();
  start();
};

export const start = () => {
  if (!panels) make();
  stop();
  const { ring } = form.elements;
  if (!ring.value || frozen) return;
  document.getElementById("download").href = `/rings/${encodeURIComponent(ring.value)}/frame.npy`;
  newest = -1;
  stream = new AbortController();
  const { signal } = stream;
  const again = (text) => {
    if (signal.aborted) return;
    setText(stateLine, text);
    stateLine.className = "bad";
    retry = setTimeout(start, RETRY);
  };
  read(address(), signal, receive).then(() => again("The server ended the stream."), (error) => again(error.message));
};

export const stop = () => {
  clearTimeout(retry);
  stream?.abort();
  stream = null;
};

/** The panels, for tests. */
export const shown = () => panels;
