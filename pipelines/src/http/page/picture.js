// The panel "Image" of the view "Scope": a frame as an image, with axes, a colour scale, and the value below the pointer.
import { axisUnit, caption, colour, decibel, fitted, frequencies, number, onScheme, setText } from "./common.js";
import { paint } from "./palette.js";

/** Space around the pixels in CSS pixels: for the axes on the left and below, and for the colour scale on the right. */
const MARGIN = { left: 56, right: 78, top: 8, bottom: 40 };
/** Space between the border of a figure and its canvas, in CSS pixels, as in the style sheet. */
const PADDING = 13;
/** Width of the colour scale in CSS pixels. */
const SCALE_WIDTH = 12;
/** The colours of an image whose pixels have three values. */
const COLOURS = ["red", "green", "blue"];
/** Minimum distance of two labels in CSS pixels. */
const LABEL_DISTANCE = { x: 70, y: 36 };

/** Returns round values between `low` and `high` for at most `count` labels. */
export const ticks = (low, high, count) => {
  const span = high - low;
  if (!(span > 0) || count < 1) return [low];
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = power * [1, 2, 5, 10].find((factor) => span / (power * factor) <= count);
  const first = Math.ceil(low / step), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
};

/** Writes red, green and blue between `low` and `high` as pixels; pixels without values are grey. */
const paintColours = (values, low, high, bytes) => {
  const scale = 255 / (high - low || 1);
  for (let pixel = 0; pixel * 3 < values.length; pixel += 1) {
    const colours = values.subarray(pixel * 3, pixel * 3 + 3);
    const missing = colours.some(Number.isNaN);
    for (let i = 0; i < 3; i += 1) bytes[pixel * 4 + i] = missing ? 128 : (colours[i] - low) * scale;
    bytes[pixel * 4 + 3] = 255;
  }
};

/** Returns the horizontal and the vertical axis of an image: its label, and its values at the borders. */
const axesOf = (frame, natural) => {
  const rows = { label: "row", from: 0, to: natural[0] };
  if (frame.image?.kind !== "channels") return [{ label: "column", from: 0, to: natural[1] }, rows];
  const channels = { ...rows, label: "channel" };
  if (frame.axis.kind === "frequency") {
    const { values, unit } = frequencies(frame, natural[1]);
    const half = values.length > 1 ? (values[1] - values[0]) / 2 : .5;
    return [{ label: `frequency (${unit})`, from: values[0] - half, to: values.at(-1) + half }, channels];
  }
  const { rate } = frame.axis;
  const [factor, unit] = rate > 0 ? axisUnit(frame.frame_points / rate, "s") : [1, "samples"];
  return [{ label: `time in the frame (${unit})`, from: 0, to: frame.frame_points * (rate > 0 ? factor / rate : 1) }, channels];
};

/** A frame as an image: its rows are lines or channels. */
export class Picture {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.output = figure.querySelector("output");
    this.pixels = document.createElement("canvas");
    this.shown = null;
    /** The column and the row whose value is shown, as numbers of the frame, and whether the keyboard has selected them. */
    this.selected = null;
    this.hasKeys = false;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { if (!this.hasKeys) this.select(null); });
    this.canvas.addEventListener("blur", () => { if (this.hasKeys) this.select(null); });
    this.canvas.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.draw()).observe(figure);
    onScheme(() => this.draw());
  }

  update(frame, { log }) {
    const { image } = frame.data;
    const [rows, columns, colours = 1] = image.shape;
    const level = log ? decibel : (value) => value;
    const values = Float32Array.from(image, level);
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) {
      if (value < low && value > -300) low = value;
      if (value > high) high = value;
    }
    if (!(low <= high)) [low, high] = [0, 1];
    [this.pixels.width, this.pixels.height] = [columns, rows];
    const pixels = this.pixels.getContext("2d").createImageData(columns, rows);
    if (colours === 3) paintColours(values, low, high, pixels.data);
    else paint(values, low, high, pixels.data);
    this.pixels.getContext("2d").putImageData(pixels, 0, 0);
    const natural = frame.image?.pixels ?? [rows, columns];
    const isImage = frame.image?.kind !== "channels";
    this.shown = { values, rows, columns, colours, low, high, natural, isImage, axes: axesOf(frame, natural), unit: log ? " dB" : "" };
    // Screen readers announce values when a key selects them, not with each frame.
    this.output.ariaLive = "off";
    this.figure.classList.toggle("first", isImage);
    this.draw();
    caption(this.figure, isImage ? `Image, ${natural[1]} × ${natural[0]} pixels` : `Channels, ${natural[0]} × ${natural[1]} points`);
    setText(this.figure.querySelector(".note"), "Missing values are grey.");
  }

  /** Returns the place of the pixels on the canvas. Lines of an image keep their proportions; channels become rows of a readable
   *  height. */
  place() {
    const { natural, rows, isImage } = this.shown;
    const space = Math.max(60, this.figure.clientWidth - 2 * PADDING - MARGIN.left - MARGIN.right);
    const height = isImage ? Math.min(640, space * natural[0] / natural[1]) : Math.max(140, Math.min(420, rows * 6));
    return { left: MARGIN.left, top: MARGIN.top, width: isImage ? height * natural[1] / natural[0] : space, height };
  }

  draw() {
    if (!this.shown || !this.figure.clientWidth) return;
    const { left, top, width, height } = this.place();
    this.canvas.style.width = `${left + width + MARGIN.right}px`;
    this.canvas.style.height = `${top + height + MARGIN.bottom}px`;
    const { context, width: all, height: tall } = fitted(this.canvas);
    context.clearRect(0, 0, all, tall);
    context.imageSmoothingEnabled = this.shown.columns > width;
    context.drawImage(this.pixels, left, top, width, height);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colour("text");
    context.strokeStyle = colour("line");
    this.drawAxes(context, left, top, width, height);
    if (this.shown.colours === 1) this.drawScale(context, left + width + 14, top, height);
    this.mark(context);
    this.read();
  }

  drawAxes(context, left, top, width, height) {
    const [x, y] = this.shown.axes;
    const line = (...points) => {
      context.beginPath();
      for (const point of points) context.lineTo(...point);
      context.stroke();
    };
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const value of ticks(x.from, x.to, Math.floor(width / LABEL_DISTANCE.x))) {
      const at = left + (value - x.from) / (x.to - x.from) * width;
      line([at, top + height], [at, top + height + 4]);
      context.fillText(number(value), at, top + height + 6);
    }
    context.fillText(x.label, left + width / 2, top + height + 22);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(y.from, y.to, Math.max(1, Math.floor(height / LABEL_DISTANCE.y)))) {
      const at = top + (value - y.from) / (y.to - y.from) * height;
      line([left - 4, at], [left, at]);
      context.fillText(number(value), left - 7, at);
    }
    context.save();
    context.translate(8, top + height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(y.label, 0, 0);
    context.restore();
  }

  /** Draws the colours with their values. */
  drawScale(context, left, top, height) {
    const { low, high, unit } = this.shown;
    const bar = document.createElement("canvas");
    [bar.width, bar.height] = [1, 256];
    const colours = bar.getContext("2d").createImageData(1, 256);
    paint(Float32Array.from({ length: 256 }, (_, i) => 255 - i), 0, 255, colours.data);
    bar.getContext("2d").putImageData(colours, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(bar, left, top, SCALE_WIDTH, height);
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (const value of ticks(low, high, Math.max(1, Math.floor(height / LABEL_DISTANCE.y)))) {
      const at = high > low ? top + (high - value) / (high - low) * height : top + height / 2;
      context.fillText(`${number(value)}${unit}`, left + SCALE_WIDTH + 5, at);
    }
  }

  point(event) {
    if (!this.shown) return;
    const { left, top, width, height } = this.place();
    const { natural } = this.shown;
    const [across, down] = [(event.offsetX - left) / width, (event.offsetY - top) / height];
    const isInside = across >= 0 && across < 1 && down >= 0 && down < 1;
    this.select(isInside ? [Math.floor(across * natural[1]), Math.floor(down * natural[0])] : null);
  }

  /** Selects the neighbour in the direction of an arrow key, at first the upper left corner. */
  move(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || !this.shown || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const { natural, rows, columns } = this.shown;
    const moved = (at, by, count, cells) => Math.max(0, Math.min(count - 1, at + by * Math.ceil(count / cells)));
    const [x, y] = this.selected ?? [];
    this.output.ariaLive = "polite";
    this.select(this.selected ? [moved(x, step[0], natural[1], columns), moved(y, step[1], natural[0], rows)] : [0, 0], true);
  }

  /** Shows the value of a column and a row, or none. */
  select(selected, hasKeys = false) {
    [this.selected, this.hasKeys] = [selected, hasKeys];
    this.draw();
  }

  /** Shows the place and the value that are selected. */
  read() {
    setText(this.output, (this.selected && this.shown && this.at(...this.selected)) || "");
  }

  /** Marks the value that is selected. */
  mark(context) {
    if (!this.selected || !this.hasKeys) return;
    const { left, top, width, height } = this.place();
    const { natural } = this.shown;
    const [x, y] = this.selected;
    const [across, down] = [width / natural[1], height / natural[0]];
    const side = Math.max(8, across, down);
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    context.strokeRect(left + (x + .5) * across - side / 2, top + (y + .5) * down - side / 2, side, side);
  }

  /** Returns the place and the value of a column and a row of the frame. */
  at(x, y) {
    const { values, rows, columns, colours, natural, unit, isImage } = this.shown;
    if (x >= natural[1] || y >= natural[0]) return "";
    // As the server divides rows and columns.
    const cellOf = (at, cells, count) => Math.floor(((at + 1) * cells - 1) / count);
    const [row, column] = [cellOf(y, rows, natural[0]), cellOf(x, columns, natural[1])];
    const cell = row * columns + column;
    const shown = [...values.subarray(cell * colours, (cell + 1) * colours)];
    const text = shown.map((value, i) => `${colours > 1 ? `${COLOURS[i]} ` : ""}${Number.isNaN(value) ? "missing" : `${number(value)}${unit}`}`).join(", ");
    const [horizontal, vertical] = this.shown.axes;
    if (isImage) return `${vertical.label} ${y}, column ${x}: ${text}`;
    // Of more channels than rows, only some are shown.
    const channel = Math.floor(row * natural[0] / rows);
    const place = horizontal.from + (x + .5) / natural[1] * (horizontal.to - horizontal.from);
    const name = `${horizontal.label.replace(/ \(.*/, "")} ${number(place)} ${horizontal.label.match(/\((.*)\)/)?.[1] ?? ""}`;
    return `${vertical.label} ${channel}, ${name.trim()}: ${text}`;
  }

  clear() {
    this.shown = this.selected = null;
    setText(this.output, "");
  }
}
