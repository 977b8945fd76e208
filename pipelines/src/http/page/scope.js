// The view "Scope": the newest frames of a ring as curves, spectra, histograms and images.
import { element, scale, setText } from "./common.js";
import { Histogram, Phase, Series, Spectrum, Values, binsOf } from "./panels.js";
import { Picture } from "./picture.js";
import { read } from "./stream.js";

/** Sizes of Fourier transforms. */
const SIZES = Array.from({ length: 13 }, (_, i) => 16 << i);
/** Pause before the stream is requested again after an error, in milliseconds. */
const RETRY = 2000;
/** Age of the newest frame from which the page mentions it, in seconds. */
const OLD = 3;
/** Keys of the form that the server reduces by, and that are kept for each ring. An empty value is the server's default. */
const DEFAULTS = { channel: "0", part: "", size: "", full_scale: "", row: "" };
const KEYS = Object.keys(DEFAULTS);
/** Checkbox of the form: levels of spectra and images, and counts, are logarithmic. */
const LOG = "log";
/** Clocks whose times are UTC. */
const UTC_CLOCKS = ["host", "kernel", "sensor-utc", "recorded-utc"];

const figure = (name) => document.getElementById(`panel-${name}`);
const form = document.getElementById("scope-form");
const stateLine = document.getElementById("scope-state");
const freezeButton = document.getElementById("freeze");
const download = document.getElementById("download");
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
/** Number of the newest frame in the waterfall, the mean and the maximum. */
let counted = -1;
/** The newest response of `/status`. */
let status = null;
/** Whether levels are logarithmic; `null` before the first frame of a ring without a saved choice. */
let log = null;

/** Shows the points `from` to `to` of the frame, or all points if `from` is `null`. */
const zoom = (from, to) => {
  if (!last) return;
  const points = last.frame_points;
  const first = Math.max(0, Math.min(points - 1, from));
  zoomed = from === null ? null : [first, Math.max(1, Math.min(points, to) - first)];
  start();
};

const make = () => {
  panels = {
    time: new Series(figure("time"), zoom),
    spectrum: new Spectrum(figure("spectrum")),
    phase: new Phase(figure("phase")),
    histogram: new Histogram(figure("histogram")),
    image: new Picture(figure("image")),
    values: new Values(figure("values")),
  };
  form.elements.size.append(new Option("auto", ""), ...SIZES.map((size) => new Option(size)));
  form.addEventListener("change", (event) => {
    const { name } = event.target;
    if (name === LOG) { log = event.target.checked; save(); repaint(); return; }
    // The browser marks a field with an invalid value.
    if (!event.target.checkValidity()) { event.target.reportValidity(); return; }
    if (name === "ring") { change(); return; }
    save();
    zoomed = null;
    reset();
    start();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("reset").addEventListener("click", () => { panels.spectrum.reset(); });
  freezeButton.addEventListener("click", () => { freeze(!frozen); start(); });
};

/** Removes everything that belongs to another ring. */
const clear = () => {
  last = null;
  for (const name of Object.keys(panels)) figure(name).hidden = true;
  for (const key of KEYS) form.elements[key].parentElement.hidden = true;
  stateLine.className = "";
  setText(stateLine, "");
  waiting();
  offer();
};

/** Shows the ring that was chosen. `asked` contains values of the address, which have priority over the saved ones. */
const change = (asked) => {
  freeze(false);
  restore(asked);
  clear();
  zoomed = null;
  reset();
  start();
};

/** Starts the waterfall, the mean and the maximum again. */
const reset = () => {
  pending = [];
  received = [];
  counted = -1;
  for (const panel of Object.values(panels)) panel.clear();
};

const freeze = (wanted) => {
  if (frozen === wanted) return;
  if (pending.length) repaint();
  frozen = wanted;
  freezeButton.setAttribute("aria-pressed", String(frozen));
  if (last) describe(last, []);
  offer();
};

/** Offers the frame that is shown for download if the display is frozen; otherwise the newest frame. */
const offer = (isKept = true) => {
  freezeButton.disabled = !last && !frozen;
  const hasFile = Boolean(last) && isKept;
  setText(download, frozen ? "Download frozen frame" : "Download newest frame");
  download.setAttribute("aria-disabled", String(!hasFile));
  const path = `/rings/${encodeURIComponent(form.elements.ring.value)}/frame.npy`;
  if (hasFile) download.href = frozen ? `${path}?index=${last.index}` : path;
  else download.removeAttribute("href");
};

const save = () => {
  const kept = Object.fromEntries(KEYS.map((key) => [key, form.elements[key].value]));
  kept[LOG] = form.elements[LOG].checked;
  localStorage.setItem(`scope ${form.elements.ring.value}`, JSON.stringify(kept));
};

const restore = (asked) => {
  const kept = JSON.parse(localStorage.getItem(`scope ${form.elements.ring.value}`) ?? "{}");
  for (const key of KEYS) if (asked?.has(key)) kept[key] = asked.get(key);
  for (const key of KEYS) {
    const field = form.elements[key];
    const value = kept[key] ?? DEFAULTS[key];
    if (key === "part" && value && ![...field.options].some((option) => option.value === value)) element("option", value, field).value = value;
    field.value = value;
  }
  log = kept[LOG] ?? null;
};

const address = () => {
  const { ring } = form.elements;
  const query = new URLSearchParams(KEYS.map((key) => [key, form.elements[key].value]).filter(([key, value]) => value !== DEFAULTS[key]));
  query.set("width", String(Math.max(200, Math.min(1200, figure("time").clientWidth || 800))));
  if (zoomed) { query.set("first", zoomed[0]); query.set("points", zoomed[1]); }
  if (frozen) query.set("index", last.index);
  return `/rings/${encodeURIComponent(ring.value)}/scope?${query}`;
};

const receive = (frame) => {
  if (frame.error) { problem(frame.error); return; }
  if (!frame.arrays) {
    if (!last) fields(frame);
    return;
  }
  if (frame.index === newest || (frozen && frame.index !== last.index)) return;
  newest = frame.index;
  if (!pending.length) requestAnimationFrame(repaint);
  pending.push(frame);
};

const problem = (text) => {
  setText(stateLine, text);
  stateLine.className = "bad";
};

/** Shows the newest frame, and adds all received frames to the waterfall, the mean and the maximum. */
const repaint = () => {
  last = pending.at(-1) ?? last;
  // The server sends a frozen frame again when the page shows other points of it.
  const frames = pending.filter(({ index }) => index !== counted);
  pending = [];
  if (!last || !panels) return;
  counted = last.index;
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
  const has = { time: data.min, spectrum: data.waterfall, phase: data.phase, histogram: data.histogram ?? binsOf(last), image: data.image, values: data.values };
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
  if (freezeButton.disabled) offer();
};

/** Shows why a ring has no frame. */
const waiting = () => {
  const ring = status?.plan.rings.find(({ name }) => name === form.elements.ring.value);
  const report = status?.report;
  if (last || !ring || report.rings[ring.name]?.published) return;
  const source = report.sources[ring.producer];
  const rejected = source?.rejected ?? 0;
  const received = (source?.delivered ?? 0) + (source?.duplicates ?? 0);
  const why = !source
    ? `${ring.producer} has written no frame yet`
    : received || rejected
      ? `source ${ring.producer} has received ${received.toLocaleString()} packets${rejected ? ` and rejected ${rejected.toLocaleString()}` : ""}, but no frame is complete yet`
      : `source ${ring.producer} has received nothing for ${Math.floor(report.seconds)} s`;
  stateLine.className = "";
  setText(stateLine, `Waiting for the first frame of ring ${ring.name}: ${why}.`);
};

/** The line with number, time and completeness of the newest frame. */
const describe = (frame, frames) => {
  const now = performance.now();
  received.push(...frames.map((one) => [now, one.index]));
  received = received.filter(([at]) => now - at < 3000);
  const [oldest, newest] = [received[0], received.at(-1)];
  const seconds = (newest?.[0] - oldest?.[0]) / 1000;
  const rates = !frozen && seconds > .5 ? ` · shows ${((received.length - 1) / seconds).toFixed(1)} of ${scale((newest[1] - oldest[1]) / seconds, "frames/s")}` : "";
  const time = frame.clock === "none" ? "" : ` · ${new Date(frame.time_ms).toISOString().replace("T", " ").replace("Z", UTC_CLOCKS.includes(frame.clock) ? " UTC" : "")} (${frame.clock})`;
  const packets = frame.packets ? ` · ${frame.arrived} of ${frame.packets} packets` : frame.incomplete ? " · computed from incomplete frames" : "";
  setText(stateLine, `${frozen ? "frozen: " : ""}frame ${frame.sequence} · epoch ${frame.epoch}${time}${packets}${rates} · ${frame.complex ? "complex " : ""}${frame.type}${age()}`);
  stateLine.classList.toggle("bad", frame.incomplete || (frame.packets > 0 && frame.arrived < frame.packets));
  const rows = frame.data.waterfall?.shape[0] ?? 0;
  const order = rows > 1 ? `Newest on top; ${rows} rows per frame` : "Newest frame on top";
  setText(document.getElementById("waterfall-note"), `${order} (${panels.spectrum.levels ?? ""}). Missing data is grey. Frames that are not shown have no row.`);
};

/** Returns how old the newest frame is if no frame arrives. */
const age = () => {
  const seconds = (status?.report.rings[form.elements.ring.value]?.newest_frame_age_ns ?? 0) / 1e9;
  return !frozen && seconds > OLD ? ` · no new frame for ${Math.floor(seconds)} s` : "";
};

/** Shows the fields of the form that the ring has, with the values that they can have. */
const fields = (frame) => {
  const { channel, part, size, full_scale: fullScale, row } = form.elements;
  const show = (field, wanted) => { field.parentElement.hidden = !wanted; };
  const isTime = frame.axis.kind === "time";
  channel.max = String(frame.channels - 1);
  row.max = String(frame.frame_points);
  for (const option of size.options) option.hidden = option.disabled = Number(option.value) > frame.frame_points;
  show(channel, frame.channels > 1);
  show(part, frame.parts.length > 1);
  show(size, isTime && frame.frame_points >= SIZES[0]);
  show(fullScale, (isTime || frame.axis.kind === "pixels") && !frame.type.startsWith("float"));
  show(row, (isTime || frame.axis.kind === "pixels") && frame.frame_points > 1);
  if (part.options.length !== frame.parts.length + 1) {
    const chosen = part.value;
    part.replaceChildren(new Option("all", ""), ...frame.parts.map((name, i) => new Option(name, String(i))));
    part.value = chosen;
  }
};

/** Shows a response of `/status`: follows the list of rings, and how long a ring has had no new frame. */
export const update = (next) => {
  status = next;
  const names = status.plan.rings.map(({ name }) => name);
  if (names.join() === rings) {
    waiting();
    if (last && !frozen && age() && stream) describe(last, []);
    return;
  }
  rings = names.join();
  const { ring } = form.elements;
  // The address selects the ring and the values of the form when the page opens.
  const asked = ring.value ? null : new URLSearchParams(location.hash.split("?")[1] ?? "");
  const wanted = ring.value || asked.get("ring");
  ring.replaceChildren(...names.map((name) => new Option(name)));
  if (names.includes(wanted)) ring.value = wanted;
  change(asked);
};

/** Shows what the address asks for, after it was changed. */
export const follow = () => {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (!panels || ![...asked].length) return;
  const { ring } = form.elements;
  const wanted = asked.get("ring");
  if ([...ring.options].some(({ value }) => value === wanted)) ring.value = wanted;
  change(asked);
};

/** Requests the stream of the view that the form describes. The stream before it ends when the new one has begun, so that the
 *  server keeps a frozen frame. */
export const start = () => {
  if (!panels) make();
  clearTimeout(retry);
  if (!form.elements.ring.value || (frozen && stream?.url === address())) return;
  const previous = stream;
  const mine = Object.assign(new AbortController(), { url: address(), index: frozen ? last.index : null });
  stream = mine;
  newest = -1;
  const end = (text, code) => {
    mine.abort();
    if (stream === mine && frozen && previous?.index === mine.index && !previous.signal.aborted) {
      // The server keeps the frozen frame for the stream before, which continues. The next change of the form requests another one.
      stream = Object.assign(previous, { url: null });
      problem(text);
      return;
    }
    previous?.abort();
    if (stream !== mine) return;
    stream = null;
    problem(text);
    if (code === 400 && KEYS.some((key) => form.elements[key].value !== DEFAULTS[key])) {
      // The values were kept when the ring had another layout.
      for (const key of KEYS) form.elements[key].value = DEFAULTS[key];
      save();
      zoomed = null;
    }
    if (frozen && code) offer(false);
    else retry = setTimeout(start, RETRY);
  };
  const got = (message) => {
    previous?.abort();
    if (stream === mine) receive(message);
  };
  read(mine.url, mine.signal, got).then(() => end("The server ended the stream."), (error) => end(error.message, error.status));
};

/** Ends the stream. A frozen frame is still shown later, so that its stream continues. */
export const stop = () => {
  clearTimeout(retry);
  if (frozen) return;
  stream?.abort();
  stream = null;
};

/** The panels, for tests. */
export const shown = () => panels;
