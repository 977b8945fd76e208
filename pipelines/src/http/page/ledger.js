// The view "Ledger": tables with all counters.
import { duration, element, scale, sum } from "./common.js";

// Columns whose value should be 0.
const losses = new Set(["lost", "incomplete", "duplicates", "rejected", "skipped", "silent", "ring_full", "overrun", "discarded", "dropped_incomplete", "blocked", "failed", "dropped", "full", "revoked", "refused", "refused_queue_full", "refused_unreachable", "refused_other", "undeliverable", "engine_faults", "engine_fallbacks", "engine_quiesce_timeouts"]);
// Upper bounds of the classes of copies by size.
const classes = ["≤ 4 KiB", "≤ 16 KiB", "≤ 64 KiB", "≤ 256 KiB", "≤ 1 MiB", "≤ 4 MiB", "≤ 16 MiB", "larger"];
// Columns that are shown in another unit than in the report.
const units = { ns: ["s", 1e9], ppm: ["%", 1e4] };
const unit = (key) => units[key.split("_").pop()];
const title = (key) => (unit(key) ? `${key.replace(/_[a-z]+$/, "")} ${unit(key)[0]}` : key).replaceAll("_", " ");
const show = (value, key = "") => {
  if (value === undefined) return "–";
  if (key === "last_packet_ns") return new Date(value / 1e6).toISOString();
  if (unit(key)) return (value / unit(key)[1]).toLocaleString(undefined, { maximumFractionDigits: 3 });
  if (key === "latency") return value?.p50_us == null ? "–" : `p50 ${duration(value.p50_us)}, p99 ${duration(value.p99_us)}`;
  if (Array.isArray(value)) {
    const parts = value.map((count, i) => [classes[i], count]).filter(([, count]) => count > 0);
    return show(Object.fromEntries(parts));
  }
  if (value !== null && typeof value === "object") {
    const parts = Object.entries(value).map(([cause, count]) => `${cause} ${count.toLocaleString()}`);
    return parts.length ? parts.join(", ") : "0";
  }
  return typeof value === "number" ? value.toLocaleString() : String(value);
};
let before = null;
const rate = (report, kind, name) => {
  const old = before?.[kind]?.[name];
  const seconds = before ? report.seconds - before.seconds : 0;
  if (!old || seconds <= 0) return "";
  const bytes = (report[kind][name].bytes - old.bytes) / seconds;
  return scale(bytes * 8, "bit/s");
};
// The GPU values of a kernel, and the engine values of a source, are shown in the same row as the other values.
const prefixed = (prefix, values) => Object.fromEntries(Object.entries(values || {}).map(([key, value]) => [`${prefix}_${key}`, value]));
const flat = ({ device, engine, parts, ...row }) => ({ ...row, ...prefixed("gpu", device), ...prefixed("engine", engine) });
const byNumber = ([a], [b]) => a.localeCompare(b, "en", { numeric: true });
// The parts of the frames of all sources are shown in one table.
const partsOf = (sources) => Object.fromEntries(Object.entries(sources).flatMap(([source, row]) => Object.entries(row.parts || {}).sort(byNumber).map(([part, counts]) => [`${source} ${part}`, counts])));
const table = (report, kind) => {
  const rows = Object.entries(report[kind] || {}).map(([name, row]) => [name, flat(row)]);
  const parts = [element("h2", kind)];
  if (!rows.length) return [];
  const made = element("table");
  made.ariaLabel = kind;
  const head = element("tr", undefined, made);
  element("th", "name", head);
  const rated = "bytes" in rows[0][1];
  // A copy has the name of the ring that it fills, so the column `to` is omitted.
  const keys = [...new Set(rows.flatMap(([, row]) => Object.keys(row)))].filter((key) => kind !== "copies" || key !== "to");
  for (const key of keys) element("th", title(key), head);
  if (rated) element("th", "rate", head);
  for (const [name, row] of rows) {
    const line = element("tr", undefined, made);
    element("td", name, line);
    for (const key of keys) {
      const value = row[key];
      const cell = element("td", show(value, key), line);
      const amount = value !== null && typeof value === "object" ? sum(value) : Number(value);
      if (losses.has(key) && amount > 0) cell.className = "bad";
    }
    if (rated) element("td", rate(report, kind, name), line);
  }
  parts.push(made);
  return parts;
};

/** Shows a response of `/status`. */
export const update = (status) => {
  const report = { ...status.report, parts: partsOf(status.report.sources) };
  const sentences = [element("p", `${status.state} for ${Math.round(status.seconds).toLocaleString()} s`)];
  // The server provides the text, so that the page and the log always agree.
  for (const [name, loss] of Object.entries(status.loss)) {
    const sentence = element("p", `source ${name}: ${loss.text}`);
    if (loss.is_loss) sentence.className = "bad";
    sentences.push(sentence);
  }
  const parts = ["sources", "parts", "rings", "readers", "clients", "copies", "kernels", "sinks"].flatMap((kind) => table(report, kind));
  document.getElementById("tables").replaceChildren(...sentences, ...parts);
  before = report;
};
