#!/usr/bin/env python3
"""Show the spectra of a running pipeline as a waterfall. Needs matplotlib.

daq run configs/quickstart.toml       # in another terminal
python3 python/examples/waterfall.py spectra
"""

from __future__ import annotations

import argparse

import matplotlib.pyplot as plt
import numpy as np

import daq

parser = argparse.ArgumentParser(description="Show the spectra of a ring as a waterfall.")
parser.add_argument("ring", nargs="?", default="spectra")
parser.add_argument("--pipeline", help="name of the pipeline, if several have this ring")
parser.add_argument("--channel", type=int, default=0)
parser.add_argument("--rows", type=int, default=200, help="number of spectra in the picture")
parser.add_argument("--interval", default="100 ms", help="time between two spectra")
parser.add_argument("--save", metavar="FILE", help="write the picture to a file after `rows` spectra, instead of a window")
args = parser.parse_args()

with daq.attach(args.ring, pipeline=args.pipeline, interval=args.interval, copy=True) as ring:
    layout = ring.layout
    axis = layout.axis
    if axis["kind"] != "frequency":
        parser.error(f'ring {ring.name} has no spectra; add a kernel with `use = "power-spectrum"`')
    start, step = axis.get("start", 0.0) / 1e6, axis.get("step", 1e6) / 1e6
    # A picture has fewer columns than a spectrum has bins, and a narrow line must not disappear.
    edges = np.unique(np.linspace(0, layout.points, min(layout.points, 256), endpoint=False).astype(int))
    picture = np.full((args.rows, len(edges)), np.nan, np.float32)
    figure, axes = plt.subplots()
    extent = (start, start + step * layout.points, args.rows, 0)
    image = axes.imshow(picture, aspect="auto", extent=extent, interpolation="nearest")
    axes.set(xlabel="frequency in MHz", ylabel="spectra ago")
    bar = figure.colorbar(image, label="power in dB")
    for count, frame in enumerate(ring, 1):
        spectrum = np.asarray(frame)
        spectrum = spectrum[args.channel] if layout.order == "planar" else spectrum[:, args.channel]
        picture = np.roll(picture, 1, axis=0)
        # Spectra with missing samples are blank.
        power = 10 * np.log10(np.maximum.reduceat(spectrum, edges) + 1e-30)
        picture[0] = np.nan if frame.flags & daq.Flags.INCOMPLETE else power
        if args.save and count < args.rows:
            continue
        image.set_data(picture)
        if np.isfinite(picture).any():
            image.set_clim(np.nanpercentile(picture, 5), np.nanmax(picture))
        axes.set_title(f"{frame.time} ({frame.clock})")
        if args.save:
            figure.savefig(args.save)
            break
        plt.pause(0.001)
        if not plt.fignum_exists(figure.number):
            break
