#!/usr/bin/env python3
"""Draws charts of benchmarks with matplotlib.

`page` writes the results of `daq bench --json` as one HTML page with tables and charts. The page needs no network and no
script. `benchmarks` draws the charts of BENCHMARKS.md from its tables.
"""
import argparse
import html
import io
import json
import math
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.ticker
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "src" / "images"
# Width of a drawing in pixels, pixels per inch, and the height of one line of text in pixels.
WIDTH, DPI, LINE = 520, 96, 19
# Colours on a light and on a dark background: background, text, dim text, grid, other methods, then those of lines. They also
# differ in brightness, and lines differ in markers and dashes, so that no reader needs the colours.
BACK, TEXT, DIM, GRID, OTHER = "#ffffff", "#1a1d21", "#59626e", "#e0e4ea", "#8b9199"
LINES = ["#0b5fae", "#c2500a", "#0a7f5f", "#8f3fa8", "#8a6a00", "#b82c66", "#2f7f92", "#5b5f66"]
DARK = dict(zip([BACK, TEXT, DIM, GRID, OTHER, *LINES], [
    "#14171b", "#e6e9ed", "#a0aab5", "#2f353d", "#737b86", "#6db3f2", "#ff9d5c", "#4fcf9f", "#d29bf0", "#e6c54a", "#ff86b3",
    "#74d2de", "#b4b9c0"]))
MARKERS, DASHES = "osD^vPXh", [(0, (6, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (4, 2))]
STYLE = "<style>@media (prefers-color-scheme:dark){" + "".join(
    f'.daq-chart [style*="{kind}: {light}"]{{{kind}:{dark}!important}}' for light, dark in DARK.items() for kind in ("fill", "stroke")
) + "}</style>"
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ margin: 0 auto; max-width: 62rem; padding: 1rem .5rem; font: 15px/1.5 system-ui, sans-serif; }}
h2 {{ font-size: 1.05rem; margin: 2.2rem 0 .6rem; }}
svg {{ display: block; width: 100%; max-width: 640px; height: auto; margin: .8rem 0; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem 1.1rem .2rem 0; text-align: left; border-bottom: 1px solid #8886; vertical-align: top; }}
.number {{ text-align: right; white-space: nowrap; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}</body>
</html>
"""


def number(text):
    """Returns the number at the start of a text; NaN if the text does not start with a number."""
    found = re.match(r"\s*(\d[\d.]*)", str(text))
    return float(found[1]) if found else math.nan


def size(text):
    """Returns the number of bytes or the count at the start of a text, and whether it is a number of bytes."""
    found = re.match(r"([\d.]+) ?([KMG]?i?B)?\b", str(text))
    if not found:
        return math.nan, False
    return float(found[1]) * UNITS.get(found[2], 1), found[2] in UNITS


def shown(value, is_bytes=False):
    """Formats a number with three digits, or a number of bytes with its unit."""
    if is_bytes:
        unit = next(unit for unit in reversed(UNITS) if value >= UNITS[unit] or unit == "B")
        return f"{value / UNITS[unit]:g} {unit}"
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"


def abbreviated(value):
    """Formats a number for a label in a drawing, whose room is limited: small and large ones with three digits and an SI prefix."""
    # Three digits of the next smaller prefix would round up to 1000 of it.
    for prefix, factor, least in (("G", 1e9, 0.9995e9), ("M", 1e6, 0.9995e6), ("k", 1e3, 9999.5), ("", 1, 0.00099995), ("µ", 1e-6, 0)):
        if value >= least:
            break
    if factor != 1 and value:
        return f"{float(f'{value / factor:.3g}'):g}{prefix}"
    return shown(value) if value >= 0.01 or not value else f"{value:.2g}"


@dataclass
class Line:
    """The figures of a method: for each size or count the median, and the 99th percentile or NaN."""
    name: str
    is_own: bool
    points: list
    group: str = ""

    def __post_init__(self):
        self.points = [(x, median, (*high, math.nan)[0]) for x, median, *high in self.points if not math.isnan(median)]


@dataclass
class Chart:
    """A chart: lines over sizes or counts, whose name is `label`, or one row per method if there is no label."""
    title: str
    unit: str
    better: str
    lines: list
    label: str = None
    ceilings: list = ()

    def __post_init__(self):
        self.lines = [line for line in self.lines if line.points]
        self.heading = textwrap.wrap(self.title, 56)
        self.is_bytes = bool(self.lines) and size(self.lines[0].points[0][0])[1]

    def place(self, x):
        """Formats a size or a count."""
        return shown(size(x)[0], self.is_bytes)

    def describe(self):
        """Describes the chart with all figures, for readers who do not see it. Checks compare this text."""
        parts = [self.unit + (f" by {self.label}" if self.label else "") + f"; {self.better} is better."]
        parts += [f"{name}: {shown(figure)}." for name, figure in self.ceilings]
        for line in self.lines:
            points = (shown(median) + (f" at {self.place(x)}" if self.label else "") + (f" (99 %: {shown(high)})" if high == high else "")
                      for x, median, high in line.points)
            parts.append(f"{line.group}{', ' if line.group else ''}{line.name}: {', '.join(points)}.")
        return " ".join(parts)


def draw(chart):
    """Returns a chart as SVG."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "daq", "font.size": 10, "font.sans-serif": "DejaVu Sans",
             "text.color": TEXT, "axes.labelcolor": DIM, "xtick.color": DIM, "ytick.color": DIM, "axes.edgecolor": DIM, "grid.color": GRID, "figure.facecolor": BACK,
             "axes.facecolor": BACK, "text.parse_math": False}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **style}):
        figure, file = draw_lines(chart) if chart.label else draw_rows(chart), io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    # Several drawings of a page must not have the same identifiers, except those that are hashes of what they name.
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg[svg.index("<svg "):].rstrip() + "\n")
    width, height = (round(side * DPI) for side in figure.get_size_inches())
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    head = f'<svg class="daq-chart" role="img" width="{width}" height="{height}" '
    text = f"<title>{html.escape(chart.title)}</title>\n<desc>{html.escape(chart.describe())}</desc>\n{STYLE}\n"
    return re.sub(r"<svg ([^>]*>\n?)", lambda found: head + found[1] + text, svg, count=1)


def canvas(chart, height, high):
    """Creates a figure of a height in pixels below the title, with title and unit. `high` explains 99th percentiles."""
    height += 44 + 20 * len(chart.heading)
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
    has_high = any(point[2] == point[2] for line in chart.lines for point in line.points)
    subtitle = f"{chart.unit}; {chart.better} is better" + (f"; {high}" if has_high else "")
    place = {"x": 14 / WIDTH, "ha": "left", "va": "top"}
    figure.text(y=1 - 10 / height, s="\n".join(chart.heading), fontsize=12, fontweight="bold", linespacing=1.25, **place)
    figure.text(y=1 - (16 + 20 * len(chart.heading)) / height, s=subtitle, color=DIM, **place)
    return figure, height


def draw_lines(chart):
    """Draws lines over sizes or counts, with a legend below."""
    names = {name: textwrap.fill(name, 56) for name in [line.name for line in chart.lines] + [name for name, _ in chart.ceilings]}
    legend = 58 + LINE * sum(name.count("\n") + 1 for name in names.values())
    figure, height = canvas(chart, 240 + legend, "vertical lines: up to 99 %")
    axes = figure.add_axes((58 / WIDTH, legend / height, (WIDTH - 76) / WIDTH, 240 / height))
    for i, line in enumerate(sorted(chart.lines, key=lambda line: not line.is_own)):
        x, medians, highs = zip(*sorted((size(x)[0], median, high) for x, median, high in line.points))
        colour, width, dash = LINES[i % len(LINES)], 2.6 if line.is_own else 1.5, DASHES[i % len(DASHES)]
        axes.plot(x, medians, color=colour, label=names[line.name], marker=MARKERS[i % len(MARKERS)], markersize=5.5, linewidth=width,
                  linestyle="-" if line.is_own else dash, zorder=3)
        axes.vlines(x, medians, highs, color=colour, linewidth=1.2, alpha=0.7)
    for name, figure_of in chart.ceilings:
        axes.axhline(figure_of, color=DIM, linewidth=1.4, linestyle=":", label=names[name])
    figures = [value for line in chart.lines for _, *both in line.points for value in both if value > 0]
    places = sorted({size(x)[0] for line in chart.lines for x, *_ in line.points})
    if places[-1] > 4 * places[0] > 0:
        axes.set_xscale("log", base=2)
    if max(figures, default=0) > 100 * min(figures, default=0):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max([*figures, *(value for _, value in chart.ceilings)], default=1) * 1.08)
    # Labels need an eighth of the width.
    across, ticks = axes.transAxes.inverted().transform, []
    for x in places:
        if not ticks or (across(axes.transData.transform((x, 1))) - across(axes.transData.transform((ticks[-1], 1))))[0] > 1 / 8:
            ticks.append(x)
    axes.set_xticks(ticks, [shown(x, chart.is_bytes) for x in ticks])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: abbreviated(value))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    finish(axes, chart.label)
    figure.legend(loc="lower left", bbox_to_anchor=(46 / WIDTH, 4 / height), frameon=False, handlelength=3.2, labelspacing=0.35,
                  borderpad=0.2)
    return figure


def draw_rows(chart):
    """Draws one row per method: a bar, or a point with a line to the 99th percentile."""
    texts, bars, y, group = [], [], 0, ""
    for line in chart.lines:
        if line.group != group:
            texts.append((y + 12, line.group, "bold"))
            y, group = y + 24, line.group
        names = textwrap.wrap(line.name, 62)
        texts.append((y + 9 * len(names), "\n".join(names), "normal"))
        bars.append(y + 18 * len(names) + 8)
        y = bars[-1] + 14
    figure, height = canvas(chart, y + 50, "point: median, line: up to 99 %")
    axes = figure.add_axes((14 / WIDTH, 50 / height, (WIDTH - 28) / WIDTH, y / height))
    axes.set_ylim(y, 0)
    points = [line.points[0] for line in chart.lines]
    ends = [median if math.isnan(high) else high for _, median, high in points]
    ranges = [" – ".join(abbreviated(value) for value in (median, high) if not math.isnan(value)) for _, median, high in points]
    # A text needs up to 9 pixels per character in the fonts of browsers. Beside the axis there are 14 pixels.
    limit = max(ends) * max(1.22, 1 / (1 - 9 * max(map(len, ranges)) / (WIDTH - 28))) or 1
    axes.set_xlim(0, limit)
    for at, text, weight in texts:
        axes.text(0, at, text, transform=axes.get_yaxis_transform(), va="center", weight=weight, zorder=5)
    for at, line, point, end, text in zip(bars, chart.lines, points, ends, ranges):
        colour = LINES[0] if line.is_own else OTHER
        if math.isnan(point[2]):
            axes.barh(at, end, 14, color=colour)
        else:
            axes.plot([point[1], end], [at, at], color=colour, linewidth=2, alpha=0.6)
            axes.plot([point[1]], [at], color=colour, marker="o", markersize=8)
        axes.annotate(text, (end, at), (8, 0), textcoords="offset points", va="center", weight="bold")
    axes.set_yticks([])
    fits = lambda text, value: (1 - value / limit) * (WIDTH - 28) + 14 >= 4.5 * len(text)
    axes.xaxis.set_major_formatter(lambda value, _: text if fits(text := abbreviated(value), value) else "")
    finish(axes, chart.unit)
    axes.spines["left"].set_visible(False)
    return figure


def finish(axes, label):
    """Labels the horizontal axis, and removes the parts of the axes that carry no information."""
    axes.set_xlabel(label)
    axes.grid(True, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0, pad=6)


def charts_of(table):
    """Returns the charts that a table of `daq bench --json` declares."""
    for declared in table.get("charts", []):
        lines = {}
        for row in table["rows"]:
            x = row[declared["x"]] if declared["x"] else ""
            # Rows with a text such as "4 KiB to +3" are not shown.
            if declared["x"] and not re.fullmatch(r"[\d.]+( [KMG]?i?B)?", str(x)):
                continue
            methods = [str(row[column]) for column in declared["methods"] if row[column] != "–"]
            for column in declared["figures"]:
                name = ", ".join(methods) or column.removesuffix(" p50")
                if declared["only"] and name not in declared["only"]:
                    continue
                high = row.get(column.replace("p50", "p99")) if "p50" in column else None
                lines.setdefault(name, []).append([x, *(math.nan if value is None else value for value in (row[column], high))])
        own = tuple(declared["own"])
        lines = [Line(name, name.startswith(own), points) for name, points in lines.items()]
        chart = Chart(declared["title"], declared["unit"], declared["better"], lines, declared["label"], declared["ceilings"])
        if chart.lines:
            yield chart


def page(tables, title):
    """Returns the tables with their charts as HTML."""
    body = []
    for table in tables:
        name = html.escape(table["title"])
        body += [f"<h2>{name}</h2>\n", *map(draw, charts_of(table))]
        body.append(f'<div class="scroll" role="region" tabindex="0" aria-label="{name}">\n<table aria-label="{name}">\n<tr>')
        body += [f'<th scope="col">{html.escape(column)}</th>' for column in (table["rows"] or [{}])[0]] + ["</tr>\n"]
        for row in table["rows"]:
            cells = (f"<td>{html.escape(value)}</td>" if isinstance(value, str) else
                     f'<td class="number">{"–" if value is None else shown(value)}</td>' for value in row.values())
            body.append(f"<tr>{''.join(cells)}</tr>\n")
        body.append("</table>\n</div>\n")
    return PAGE.format(title=html.escape(title), body="".join(body))


def document_charts():
    """Returns the name and the chart of each drawing of BENCHMARKS.md."""
    document = (ROOT / "BENCHMARKS.md").read_text()

    def section(heading):
        return document.split(f"# {heading}\n", 1)[1].split("\n#", 1)[0] + "\n"

    def table(heading, n=0):
        found = re.findall(r"(?:^\|.*\|\n)+", section(heading), re.MULTILINE)[n]
        columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines())
        return columns, rows

    def index(names, start):
        return next(i for i, name in enumerate(names) if name.startswith(start))

    def across(heading, names, n=0, step=1):
        """Returns lines through rows whose columns are sizes. `names` has the start of each row, and of a row with 99 %."""
        columns, rows = table(heading, n)
        starts = [row[0] for row in rows]
        for name, is_own, start, tail in names:
            row, sizes = rows[index(starts, start)], range(1, len(columns), step)
            high = rows[index(starts, tail)] if tail else row[1:] if step > 1 else [""] * len(columns)
            yield Line(name, is_own, [(re.split("[:,]", columns[i])[0], number(row[i]), number(high[i])) for i in sizes])

    def down(heading, names):
        """Returns lines through columns. The first column has sizes."""
        columns, rows = table(heading)
        return [Line(name, is_own, [(row[0], number(row[index(columns, start)])) for row in rows]) for name, is_own, start in names]

    def by_packet(heading, names, only=""):
        """Returns a row for each size of packets and each column, of those rows whose second cell begins with `only`."""
        columns, rows = table(heading)
        for row in (row for row in rows if row[1].startswith(only) or not only):
            for name, is_own, start in names:
                cell = row[index(columns, start)]
                limit = " (limit of the sender)" if "sender limit" in cell else ""
                yield Line(name + limit, is_own, [("", number(cell))], f"{row[0]}-byte packets")

    gpu, udp = "Copies to and from a GPU", "UDP receive with reassembly, compared with spead2"
    ceiling = number(section(gpu).replace("\n", " ").split("one plain copy of 64 MiB:", 1)[1])
    yield "copies", Chart("Copies from host memory to an H200", "GB/s", "higher", across(gpu, [
        ("daq", True, "daq, to the GPU, GB/s", None),
        ("batched copies of the driver", False, "the driver's batched copies", None),
        ("one copy per frame", False, "copy one frame, no wait", None),
        ("one copy per frame, with a wait", False, "copy one frame and wait", None),
    ]), "frame size", [("ceiling: one copy of 64 MiB", ceiling)])
    both = [("daq", True, "daq"), ("spead2", False, "spead2")]
    yield "udp-receive", Chart("Highest rate of UDP without loss", "Gbit/s", "higher", by_packet(udp, both, "loss-free"))
    yield "udp-receive-cpu", Chart("CPU time to receive UDP", "s per GB", "lower", by_packet(udp, both, "CPU s per GB"))
    yield "udp-send", Chart("CPU time to send UDP", "s per GB", "lower", by_packet("UDP send, compared with spead2", [
        ("daq", True, "daq, s per GB"), ("daq without segmentation offload", False, "daq, plain"),
        ("spead2, tuned", False, "spead2, tuned"), ("spead2", False, "spead2, defaults")]))
    rows = [(row[0].replace("`", ""), row[0].startswith("in "), row) for row in table("Doorbell round trip")[1]]
    yield "doorbells", Chart("From a CPU store to the answer of the GPU", "µs", "lower", [
        Line(f"doorbell {name}" if is_own else name, is_own, [("", number(row[1]), number(row[2]))]) for name, is_own, row in rows])
    yield "frame-latency", Chart("From the commit of a frame to its result", "µs", "lower", across("Frame latency", [
        ("persistent kernel, one thread", True, "persistent kernel", "… p99"),
        ("persistent kernel, two threads", True, "… committed by another", None),
        ("copy + launch + synchronise", False, "copy + launch", None)]), "frame size")
    title = "From the last byte of an emulated FPGA to a persistent kernel"
    yield "fpga-latency", Chart(title, "µs", "lower", across("Emulated FPGA devices", [
        ("direct, the device rings the doorbell", True, "direct, the device", None),
        ("direct, the CPU rings the doorbell", True, "direct, the CPU", None),
        ("staged, the CPU rings the doorbell", False, "staged", None)], 1, 3), "frame size")
    yield "rdma", Chart("RDMA with emulated NICs", "MB/s", "higher", down("RDMA with emulated NICs", [
        ("ring to ring, host → host", True, "host → host"), ("queue pair alone", False, "queue pair alone"),
        ("ring to ring, GPU → GPU", True, "GPU → GPU")]), "message size")
    columns, rows = table("GPU rings in other processes", 2)
    median, high = index(columns, "to `frame`, p50"), index(columns, "p99")
    yield "python-latency", Chart("From publication to frame in Python", "µs", "lower", [
        Line(f"{row[0]} ring, {row[1].replace('`', '')}", True, [("", number(row[median]), number(row[high]))]) for row in rows])


def described(svg):
    """Returns the title, the description and the version of matplotlib of a drawing."""
    return [(re.findall(pattern, svg, re.DOTALL) or [None])[0]
            for pattern in ("<title>(.*?)</title>", "<desc>(.*?)</desc>", r"Matplotlib v([\d.]+)")]


def benchmarks(is_check):
    """Draws the charts of BENCHMARKS.md. Returns the exit code."""
    outdated = []
    for name, chart in document_charts():
        file, svg = IMAGES / f"{name}.svg", draw(chart)
        committed = file.read_text() if file.exists() else ""
        # Another version of matplotlib draws the same figures in other bytes.
        new, old = described(svg), described(committed)
        if committed != svg if new[2] == old[2] else new[:2] != old[:2]:
            outdated.append(f"{file.relative_to(ROOT)} differs from the tables of BENCHMARKS.md")
        if not is_check:
            file.write_text(svg)
        if f"(docs/src/images/{name}.svg)" not in (ROOT / "BENCHMARKS.md").read_text():
            outdated.append(f"BENCHMARKS.md does not contain {file.relative_to(ROOT)}")
    if is_check and outdated:
        print("\n".join(outdated), f"to draw the charts again, run: {sys.argv[0]} benchmarks", sep="\n", file=sys.stderr)
    return int(is_check and bool(outdated))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("page", help="write a page with tables and charts")
    command.add_argument("result", help="the output of `daq bench --json`, or - for standard input")
    command.add_argument("page", type=Path, help="the HTML file")
    command.add_argument("--title", default="daq bench", help="title of the page")
    command = commands.add_parser("benchmarks", help="draw the charts of BENCHMARKS.md into docs/src/images")
    command.add_argument("--check", action="store_true", help="only compare the charts with the tables")
    options = parser.parse_args()
    if options.command == "benchmarks":
        sys.exit(benchmarks(options.check))
    tables = json.load(sys.stdin if options.result == "-" else open(options.result, encoding="utf-8"))
    options.page.write_text(page(tables, options.title), encoding="utf-8")


if __name__ == "__main__":
    main()
