#!/usr/bin/env python3
"""Run a torch model on the frames of a ring. If the ring is in GPU memory, the model reads it without a copy.

python3 python/examples/torch_model.py voltages --frames 100
"""

from __future__ import annotations

import argparse
import sys
import time

import daq

try:
    import torch
except ImportError:
    print("this example needs torch: pip install torch", file=sys.stderr)
    sys.exit(0)

parser = argparse.ArgumentParser(description="Run a torch model on the frames of a ring.")
parser.add_argument("ring", nargs="?", default="voltages")
parser.add_argument("--pipeline", help="name of the pipeline, if several have this ring")
parser.add_argument("--frames", type=int, default=100)
args = parser.parse_args()

with daq.attach(args.ring, pipeline=args.pipeline) as ring, torch.inference_mode():
    # A model of your own goes here: this one detects changes of the mean power of 64 blocks of samples.
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool1d(64), torch.nn.Conv1d(1, 1, 3, bias=False))
    torch.nn.init.constant_(model[1].weight, 1 / 3)
    valid = count = 0
    start = time.monotonic()
    for frame in ring:
        # Do not write into this tensor: it is the memory of the ring.
        samples = torch.from_dlpack(frame)
        power = samples.to(torch.float32).abs().square().flatten()
        score = model.to(power.device)(power[None, None]).std().item()
        # Only now is it known that the producer did not overwrite the frame meanwhile.
        valid += frame.valid
        count += 1
        if count % 10 == 0:
            print(f"frame {frame.number} at {frame.time}: score {score:.4g}, {samples.device}")
        if count == args.frames:
            break
    rate = count / (time.monotonic() - start)
    print(f"{count} frames, {valid} valid, {rate:.1f} frames per second; {ring.counts}")
