#!/usr/bin/env python3
"""Flag the outliers of each frame with CuPy, or with NumPy where there is no CuPy, and write the flags back into a ring.

The pipeline needs a source with the driver `process`, whose frames have as many samples as those of the input:

    [source.flags]
    driver  = "process"
    ring    = "flags"
    samples = { type = "uint8", channels = 2, rate = "4 MHz" }
    frame   = "256 KiB"

    python3 python/examples/statistic.py voltages flags
"""

from __future__ import annotations

import argparse
from typing import Any

import daq

parser = argparse.ArgumentParser(description="Flag the outliers of each frame.")
parser.add_argument("ring", nargs="?", default="voltages")
parser.add_argument("source", nargs="?", default="flags")
parser.add_argument("--sigma", type=float, default=5.0, help="samples farther from the mean are outliers")
parser.add_argument("--frames", type=int, help="end after this number of frames")
args = parser.parse_args()

with daq.attach(args.ring) as ring, daq.produce(args.source, like=args.ring) as flags:
    on_gpu = isinstance(ring.memory, daq.CudaMemory)
    if on_gpu:
        import cupy as xp
    else:
        import numpy as xp
    for count, frame in enumerate(ring, 1):
        # On a GPU, this is the memory of the ring.
        samples: Any = xp.asarray(frame) if on_gpu else frame.values()
        if samples.ndim > 2:  # pairs of integers: real and imaginary part
            samples = samples[..., 0] + 1j * samples[..., 1]
        magnitude = xp.abs(samples)
        outliers = xp.abs(magnitude - magnitude.mean()) > args.sigma * magnitude.std()
        result = outliers.get() if on_gpu else outliers
        # Results of a frame that was overwritten meanwhile are wrong.
        if frame.valid:
            flags.write(result, frame)
        if count == args.frames:
            break
    print(f"{flags.written} frames written, {ring.counts}")
