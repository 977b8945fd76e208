"""Checks the page of a running daq in a headless Chromium, and keeps screenshots.

Arguments: what to check (`tone`, `losses`, `views`, `empty` or `kinds`), the address of the page, and the folder of the screenshots.
"""

import sys
import time
from pathlib import Path

from browser import Browser, wait

SIZES = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "phone": (390, 844, "light", True, 2)}
SCOPE = "import('/page/scope.js').then((scope) => scope.shown()"
# Colours of the brightest column of the first rows of the waterfall, and the frequency of its middle.
BRIGHTEST = """(() => {
  const canvas = document.querySelector(".waterfall");
  const row = canvas.getContext("2d").getImageData(0, 0, canvas.width, 1).data;
  let best = 0;
  for (let i = 0; i < canvas.width; i += 1) if (row[4 * i] + row[4 * i + 1] > row[4 * best] + row[4 * best + 1]) best = i;
  return [best, canvas.width];
})()"""
# Whether the spectrum is drawn at a frequency (MHz or kHz as shown) and a level.
DRAWN = SCOPE + """.spectrum.chart.chart).then((chart) => {
  const [x, y] = [chart.valToPos(%s, "x", true), chart.valToPos(%s, "y", true)].map(Math.round);
  const { data } = chart.ctx.getImageData(x - 3, y - 3, 7, 7);
  const lines = ["accent", "second", "hold"].map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  const parsed = lines.map((line) => [1, 3, 5].map((at) => parseInt(line.slice(at, at + 2), 16)));
  for (let i = 0; i < data.length; i += 4) {
    if (parsed.some((line) => line.every((value, k) => Math.abs(value - data[i + k]) < 60) && data[i + 3] > 128)) return true;
  }
  return false;
})"""
# Seconds whose column in the strip has the colour of lost packets on top, and the second of the first column.
COLOURED = """(async () => {
  const canvas = document.querySelector('canvas[data-span="10m"]');
  if (!canvas?.width) return [];
  const history = await (await fetch("/history?span=10m")).json();
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--wire_gap").trim();
  const wanted = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seconds = new Set();
  const buckets = history.sources.antenna.delivered.length;
  for (let x = 0; x < width; x += 1) {
    for (let y = 0; y < height; y += 1) {
      const at = 4 * (y * width + x);
      if (wanted.every((value, k) => Math.abs(value - data[at + k]) < 3)) {
        seconds.add(history.start + Math.floor(x / width * buckets));
        break;
      }
    }
  }
  return [...seconds];
})()"""

# Height of the highest coloured part of a column, in CSS pixels.
HEIGHT = """(() => {
  const canvas = document.querySelector('canvas[data-span="10m"]');
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--wire_gap").trim();
  const wanted = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const counts = new Array(width).fill(0);
  for (let i = 0; i < width * height; i += 1) if (wanted.every((value, k) => Math.abs(value - data[4 * i + k]) < 3)) counts[i % width] += 1;
  return Math.max(...counts) / devicePixelRatio;
})()"""


def tone(browser, address, _):
    page = browser.open("about:blank")
    page.emulate(*SIZES["light"])
    page.navigate(f"{address}/#scope")
    page.wait("the form", "document.querySelector('#scope-form select[name=ring]')?.value === 'voltages'")
    # The tone is in channel 1; channel 0 has only noise.
    page.evaluate("""(() => {
      const channel = document.querySelector("#scope-form input[name=channel]");
      channel.value = "1";
      channel.dispatchEvent(new Event("change", { bubbles: true }));
    })()""")

    def levels():
        shown = page.evaluate(SCOPE + ".spectrum?.chart.data?.map((line) => [...line]))")
        return shown if shown and max(shown[1]) > -20 else None

    x, now, mean, hold = wait("the tone", levels)
    for name, line in (("now", now), ("mean", mean), ("maximum", hold)):
        peak = max(range(len(line)), key=line.__getitem__)
        assert abs(x[peak] - 125) < 0.6, f"{name}: the tone stands at {x[peak]} kHz"
        assert abs(line[peak] + 12.04) < 0.1, f"{name}: the tone has {line[peak]} dBFS"
    best, width = page.evaluate(BRIGHTEST)
    assert (best, width) == (512 + 128, 1024), (best, width)
    assert page.evaluate(DRAWN % (125, -12.04)), "no line at the tone"
    assert not page.evaluate(DRAWN % (-125, -12.04)), "a line where no tone is"
    # Freezing stops the display, and the frozen frame can be downloaded when many newer frames have arrived.
    published = "fetch('/status').then((answer) => answer.json()).then((status) => status.report.rings.voltages.published)"
    page.evaluate("document.getElementById('freeze').click()")
    frozen = page.evaluate("document.getElementById('scope-state').textContent")
    begin = page.evaluate(published)
    page.wait("newer frames", f"{published}.then((count) => count > {begin} + 64)")
    assert page.evaluate("document.getElementById('scope-state').textContent") == frozen
    sequence, largest = page.evaluate("""fetch(document.getElementById('download').href).then(async (answer) => {
      const samples = new Int16Array((await answer.arrayBuffer()).slice(128));
      // The real parts of channel 1.
      return [answer.headers.get('daq-sequence'), samples.filter((_, i) => i % 4 === 2).reduce((a, b) => Math.max(a, b))];
    })""")
    assert frozen.startswith(f"frozen: frame {sequence} "), (frozen, sequence)
    assert largest == page.evaluate(SCOPE + ".time.chart.data[1].reduce((a, b) => Math.max(a, b)))"), largest
    # If another view of the frozen frame cannot be requested, the frame stays in memory.
    page.evaluate("""(() => {
      const request = window.fetch;
      window.fetch = () => Promise.reject(new Error("no connection"));
      const { channel } = document.getElementById("scope-form").elements;
      channel.value = "0";
      channel.dispatchEvent(new Event("change", { bubbles: true }));
      window.fetch = request;
    })()""")
    page.wait("the error", "document.getElementById('scope-state').textContent === 'no connection'")
    begin = page.evaluate(published)
    page.wait("newer frames", f"{published}.then((count) => count > {begin} + 64)")
    assert page.evaluate("fetch(document.getElementById('download').href).then((answer) => answer.status)") == 200
    page.evaluate("""(() => {
      const { channel } = document.getElementById("scope-form").elements;
      channel.value = "1";
      channel.dispatchEvent(new Event("change", { bubbles: true }));
    })()""")
    page.wait("the frozen frame", f"document.getElementById('scope-state').textContent === {frozen!r}")
    # If the rings change, the display continues.
    page.evaluate("""Promise.all([import("/page/scope.js"), fetch("/status").then((answer) => answer.json())]).then(([scope, status]) => {
      status.plan.rings.push({ ...status.plan.rings[0], name: "another" });
      scope.update(status);
    })""")
    page.wait("the rings", "document.getElementById('freeze').getAttribute('aria-pressed') === 'false'")
    page.wait("the next frame", "document.getElementById('scope-state').textContent.startsWith('frame ')")
    # The browser does not accept a channel that the ring does not have.
    page.evaluate("""(() => {
      const { channel } = document.getElementById('scope-form').elements;
      channel.value = '5';
      channel.dispatchEvent(new Event('change', { bubbles: true }));
    })()""")
    page.wait("the rejected channel", "document.querySelector('input[name=channel]').validity.rangeOverflow")
    assert page.problems() == [], page.problems()


def empty(browser, address, pictures):
    """Rings without a frame, and with frames of 16 samples."""
    page = browser.open("about:blank")
    page.emulate(*SIZES["light"])
    page.navigate(f"{address}/#scope?ring=never")
    text = page.wait("the reason", "document.getElementById('scope-state').textContent")
    assert text.startswith("Waiting for the first frame of ring never: source deaf has received nothing for "), text
    assert page.evaluate("[...document.querySelectorAll('.panels figure')].every((figure) => figure.hidden)")
    assert page.evaluate("document.getElementById('freeze').disabled && !document.getElementById('download').href")
    page.screenshot(Path(pictures) / "scope-empty.png")
    # Values that were kept when the ring had more channels and longer frames.
    page.evaluate("""(() => {
      localStorage.setItem('scope small', JSON.stringify({ channel: '3', size: '1024' }));
      const { ring } = document.getElementById('scope-form').elements;
      ring.value = 'small';
      ring.dispatchEvent(new Event('change', { bubbles: true }));
    })()""")
    shown = page.wait("the samples", SCOPE + ".time.chart?.data)")
    assert [len(line) for line in shown] == [16, 16, 16], shown
    page.wait("the spectrum", SCOPE + ".spectrum.chart?.data?.[0].length === 16)")
    sizes = page.evaluate("[...document.querySelectorAll('select[name=size] option')].filter((option) => !option.disabled).map((option) => option.text)")
    assert sizes == ["auto", "16"], sizes
    page.screenshot(Path(pictures) / "scope-small.png")
    # The first request was answered with 400.
    assert all("400" in problem for problem in page.problems()), page.problems()


def kinds(browser, address, pictures):
    """Images with axes and values, phases of visibilities, and the histogram of statistics."""
    for kind in ("light", "phone"):

        def show(ring):
            page = browser.open("about:blank")
            page.emulate(*SIZES[kind])
            page.navigate(f"{address}/#scope?ring={ring}")
            return page

        def close(page, name):
            page.screenshot(Path(pictures) / f"scope-{name}-{kind}.png")
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{name}, {kind}: {overflow} pixels wider than the window"
            assert page.problems() == [], page.problems()
            page.connection.close()

        page = show("images")
        page.wait("the image", SCOPE + ".image.shown?.rows)")
        # Values in the middle of pixels, and none beside the image. Words of 8 bytes count up by 1.
        values = page.evaluate(SCOPE + """.image).then((image) => {
          const { left, top, width, height } = image.place();
          const at = (offsetX, offsetY) => {
            image.point({ offsetX, offsetY });
            return image.output.textContent;
          };
          const pixel = (row, column) => at(left + (column + .5) / 32 * width, top + (row + .5) / 24 * height);
          return [pixel(5, 16), pixel(5, 24), pixel(6, 16), at(left - 3, top)];
        })""")
        places, numbers = zip(*(value.split(": ") for value in values[:3]))
        assert places == ("row 5, column 16", "row 5, column 24", "row 6, column 16"), values
        first, *rest = map(int, numbers)
        assert [(number - first) % 256 for number in rest] == [1, 4] and values[3] == "", values
        axes = page.evaluate("import('/page/picture.js').then(({ ticks }) => [ticks(0, 32, 8), ticks(-1, 1, 4), ticks(3, 3, 5)])")
        assert axes == [[0, 5, 10, 15, 20, 25, 30], [-1, -0.5, 0, 0.5, 1], [3]], axes
        close(page, "image")

        page = show("colours&row=32")
        page.wait("the rows as they are stored", SCOPE + ".image.shown?.colours === 1 && document.querySelector('input[name=row]').value === '32')")
        page.evaluate("location.hash = 'scope?ring=colours&row='")
        page.wait("the image in colours", SCOPE + ".image.shown?.colours === 3)")
        # Rows of the filter: green, blue, and red, green. Words of 8 bytes count up by 1, with the lowest byte first: four words are a row.
        shape, text, values = page.evaluate(SCOPE + """.image).then((image) => {
          const { rows, columns, colours, values } = image.shown;
          return [[rows, columns, colours], image.at(17, 5), [...values]];
        })""")
        assert shape == [24, 32, 3], shape
        pixel = lambda row, column: values[3 * (row * 32 + column):][:3]
        assert text == "row 5, column 17: " + ", ".join(f"{name} {value:g}" for name, value in zip(["red", "green", "blue"], pixel(5, 17))), text
        for row in range(0, 24, 2):
            red, green, blue = pixel(row, 16)
            above = (red - 4) % 256
            assert 2 * green - above == (blue + (red < 4)) % 256, (row, red, green, blue)
            assert pixel(row, 17) == pixel(row + 1, 16) == pixel(row + 1, 17) == [red, green, blue], row
        # The arrow keys select values, and stop at the border.
        page.evaluate("document.querySelector('canvas.image').focus()")
        moves = []
        for key in ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp"]:
            for kind_of in ("keyDown", "keyUp"):
                page.call("Input.dispatchKeyEvent", type=kind_of, key=key, code=key)
            moves.append(page.evaluate("document.querySelector('#panel-image output').textContent").split(":")[0])
        assert moves == [f"row {row}, column {column}" for row, column in [(0, 0), (1, 0), (1, 1), (0, 1), (0, 1)]], moves
        close(page, "colours")

        page = show("visibilities&channel=1")
        frequencies, phases = page.wait("the phases", SCOPE + ".phase.chart?.data?.map((line) => [...line]))")
        tone = min(range(len(frequencies)), key=lambda i: abs(frequencies[i] - 1))
        assert abs(phases[tone]) < 3, (frequencies[tone], phases[tone])
        assert all(phase is None or -180 <= phase <= 180 for phase in phases), phases
        close(page, "visibilities")

        page = show("health")
        bins, counts, _ = page.wait("the bins", SCOPE + ".histogram.chart?.data?.map((line) => [...line]))")
        assert (len(bins), sum(counts)) == (256, 768), (len(bins), sum(counts))
        rows = page.evaluate("[...document.querySelectorAll('#panel-values th')].map((cell) => cell.textContent)")
        assert rows == ["count", "min", "max", "mean", "rms", "clip"], rows
        close(page, "health")


def names(page):
    """Checks that assistive programs find a name for each control."""
    page.call("Accessibility.enable")
    roles = {"button", "link", "combobox", "spinbutton", "checkbox", "textbox", "image"}
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored") and node["role"]["value"] in roles:
            assert node.get("name", {}).get("value"), f"no name: {node}"


def losses(browser, address, _):
    page = browser.open(f"{address}/#strip")
    seconds = page.wait("a coloured second", f"({COLOURED}).then((seconds) => seconds.length ? seconds : null)")
    # The seconds in which the counter grew, by the daemon's own clock.
    lossy = page.evaluate("""fetch("/history?span=10m").then((answer) => answer.json()).then((history) =>
      history.sources.antenna.lost.wire_gap.map((count, i) => count > 0 ? history.start + i : null).filter(Boolean))""")
    assert 1 <= len(lossy) <= 2, lossy
    assert all(any(abs(second - lost) <= 2 for lost in lossy) for second in seconds), (seconds, lossy)
    # One percent is lost, so that the coloured part has its minimum height and the rest of the column is green.
    height = page.evaluate(HEIGHT)
    assert 4 <= height <= 8, height
    text = page.wait("the sentence", "document.querySelector('.strip .sentence')?.textContent")
    assert "lost" in text or "complete" in text, text
    page.evaluate("document.querySelector('canvas[data-span=\"10m\"]').focus()")
    for name in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=name, key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
    page.wait("the reading", "document.querySelector('.strip output').textContent.includes('UTC')")
    assert page.problems() == [], page.problems()


def views(browser, address, pictures):
    page = browser.open(f"{address}/#flow")
    page.wait("the graph", "document.querySelectorAll('#graph .node').length === 5 && document.querySelectorAll('#graph path').length === 4")
    page.evaluate("location.hash = '#ledger'")
    page.wait("the tables", "document.querySelectorAll('#tables table').length >= 4")
    assert page.problems() == [], page.problems()
    # A sink that discards frames is the bottleneck. Other processes do not fill a ring.
    found = page.evaluate(
        """import("/page/flow.js").then(({ bottleneck, fill }) => {
          const reader = (more) => ({ ring: "raw", pending: 1, blocked: 0, overrun: 0, discarded: 0, ...more });
          const readers = { disk: reader({ discarded: 7 }), "client 1": reader({ process: 5, pending: 900 }) };
          const report = { rings: { raw: { capacity: 32 } }, readers };
          const nodes = new Map([["disk", { name: "disk", reader: "disk", layer: 1 }]]);
          return `${bottleneck(report, nodes, (read) => read(report)).overrun} ${fill("raw", report)}`;
        })"""
    )
    assert found == "7 1", found
    for kind, size in SIZES.items():
        for view in ("strip", "scope", "flow", "ledger"):
            page = browser.open("about:blank")
            page.emulate(*size)
            page.navigate(f"{address}/#{view}")
            page.wait(view, f"document.readyState === 'complete' && document.getElementById('name').textContent && !document.getElementById('view-{view}').hidden")
            time.sleep(3)
            page.screenshot(Path(pictures) / f"{view}-{kind}.png")
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{view}, {kind}: {overflow} pixels wider than the window"
            names(page)
            assert page.problems() == [], page.problems()
            page.connection.close()


with Browser() as opened:
    {"tone": tone, "losses": losses, "views": views, "empty": empty, "kinds": kinds}[sys.argv[1]](opened, *sys.argv[2:])
