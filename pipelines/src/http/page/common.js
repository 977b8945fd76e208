// Numbers, times, colours and elements that all views use.

/** Creates an element with a text and a class, and appends it to `parent`. */
export const element = (tag, text, parent, className) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  if (parent) parent.append(made);
  return made;
};

/** Sets the text only if it differs, so that screen readers repeat nothing. */
export const setText = (target, text) => {
  if (target.textContent !== text) target.textContent = text;
};

/** Returns an amount with an SI prefix and three digits, such as `61.0 kpackets/s`. */
export const scale = (amount, unit) => {
  const prefixes = ["", "k", "M", "G", "T"];
  let prefix = 0;
  while (Math.abs(amount) >= 999.5 && prefix + 1 < prefixes.length) { amount /= 1000; prefix += 1; }
  const digits = amount === 0 ? "0" : amount.toPrecision(3);
  return `${digits} ${prefixes[prefix]}${unit}`;
};

/** Returns a duration given in microseconds. */
export const duration = (microseconds) => {
  if (microseconds < 1000) return `${Number(microseconds.toPrecision(3))} µs`;
  if (microseconds < 1e6) return `${Number((microseconds / 1e3).toPrecision(3))} ms`;
  return `${Number((microseconds / 1e6).toPrecision(3))} s`;
};

/** Returns a factor and a unit that make the largest value of an axis a short number. */
export const axisUnit = (largest, unit) => {
  const steps = unit === "s"
    ? [[1, "s"], [1e3, "ms"], [1e6, "µs"], [1e9, "ns"]]
    : [[1e-9, `G${unit}`], [1e-6, `M${unit}`], [1e-3, `k${unit}`], [1, unit]];
  return steps.find(([factor]) => largest * factor >= 1) ?? steps.at(-1);
};

/** Returns the time of day in UTC, for seconds since 1970. */
export const clock = (seconds, digits = 8) => new Date(seconds * 1000).toISOString().slice(11, 11 + digits);

/** Returns a colour of the style sheet. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Calls `redraw` when the browser switches between light and dark. */
export const onScheme = (redraw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

/** Sizes the pixels of a canvas to its place on the page. Returns its context, whose unit is a CSS pixel. */
export const fitted = (canvas) => {
  const { width, height } = canvas.getBoundingClientRect();
  const density = devicePixelRatio || 1;
  const pixels = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  return { context, width, height };
};

/** Returns the sum of the values of an object. */
export const sum = (counts) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0);

/** Returns a count with its noun, such as `1 frame`. */
export const counted = (count, noun) => `${count.toLocaleString()} ${noun}${count === 1 ? "" : "s"}`;

/** Sets the title of a figure. */
export const caption = (figure, text) => setText(figure.querySelector("figcaption"), text);

/** Returns a value with at most five digits. */
export const number = (value) => (value == null ? "–" : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(5))));

/** Returns the frequencies of `columns` columns of a frame in a readable unit, the factor of this unit, and the unit. */
export const frequencies = (frame, columns) => {
  // Bins of a frame are the maxima of several points; the value is shown in their middle.
  const merged = frame.frame_points / columns;
  const bins = frame.spectrum ?? { start: (frame.axis.start ?? 0) + (merged - 1) / 2 * (frame.axis.step ?? 1), step: (frame.axis.step ?? 1) * merged };
  const known = frame.axis.kind === "time" ? frame.axis.rate > 0 : frame.axis.step > 0;
  const at = (i) => bins.start + i * bins.step;
  const [factor, unit] = known ? axisUnit(Math.max(Math.abs(at(0)), Math.abs(at(columns - 1))), "Hz") : [1, frame.spectrum ? "cycles per sample" : "bins"];
  return { values: Array.from({ length: columns }, (_, i) => at(i) * factor), unit };
};

/** Returns the level of a power in decibels; a very low level for 0. */
export const decibel = (power) => (power > 0 ? 10 * Math.log10(power) : Number.isNaN(power) ? NaN : -400);
