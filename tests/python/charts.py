"""Checks pages of benchmarks and drawings in a headless Chromium without a network, and keeps screenshots.

Arguments: the folder of the screenshots, then HTML or SVG files.
"""

import sys
from pathlib import Path

from browser import Browser

SIZES = {"light": (1000, 800, "light"), "dark": (1000, 800, "dark"), "phone": (390, 844, "light", True, 2)}
# Drawings that are smaller than a readable one, texts that overlap another text, and texts outside of their drawing.
FAULTS = """(() => {
  const faults = [];
  const box = (element) => element.getBoundingClientRect();
  const charts = [...document.querySelectorAll("svg.daq-chart")].filter((svg) => box(svg).width);
  for (const svg of charts) {
    const outer = box(svg);
    if (outer.width < 300 || outer.height < 150) faults.push(`a drawing of ${outer.width} x ${outer.height} pixels`);
    const texts = [...svg.querySelectorAll("text")].filter((text) => box(text).width);
    if (texts.length < 4) faults.push(`a drawing with ${texts.length} texts`);
    for (const [i, text] of texts.entries()) {
      const a = box(text);
      const size = parseFloat(getComputedStyle(text).fontSize) * a.height / text.getBBox().height;
      if (size < 9.5) faults.push(`${text.textContent}: a font of ${size} pixels`);
      if (a.left < outer.left || a.right > outer.right || a.top < outer.top || a.bottom > outer.bottom) faults.push(`${text.textContent}: outside of the drawing`);
      for (const other of texts.slice(i + 1)) {
        const b = box(other);
        const [width, height] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
        // Boxes of neighbouring lines touch, because they contain the space for accents.
        if (width > 1 && height > 0.25 * Math.min(a.height, b.height)) faults.push(`${text.textContent} overlaps ${other.textContent}`);
      }
    }
  }
  return { faults, charts: charts.length, width: document.documentElement.scrollWidth - document.documentElement.clientWidth };
})()"""


def requested(page):
    """Returns the addresses that the page has requested."""
    page.evaluate("0")
    return {event["params"]["request"]["url"] for event in page.connection.events if event["method"] == "Network.requestWillBeSent"}


def check(browser, file, pictures):
    url = file.resolve().as_uri()
    for kind, size in SIZES.items():
        page = browser.open("about:blank")
        page.call("Network.enable")
        page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        page.emulate(*size)
        page.navigate(url)
        found = page.evaluate(FAULTS)
        page.screenshot(pictures / f"{file.stem}-{kind}.png")
        assert found["faults"] == [], f"{file.name}, {kind}: {found['faults']}"
        assert found["charts"] > 0, f"{file.name}: no drawing"
        assert file.suffix == ".svg" or found["width"] <= 0, f"{file.name}, {kind}: {found['width']} pixels wider than the window"
        assert requested(page) <= {url}, requested(page)
        assert page.problems() == [], page.problems()
        names(page)
        page.connection.close()


def names(page):
    """Checks that assistive programs find a name and a description for each drawing."""
    page.call("Accessibility.enable")
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored") and node["role"]["value"] in ("image", "region", "table"):
            assert node.get("name", {}).get("value"), f"no name: {node}"


with Browser() as opened:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        check(opened, Path(name), folder)
