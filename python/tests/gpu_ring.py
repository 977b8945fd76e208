#!/usr/bin/env python3
"""Checks and measures rings in GPU memory that torch and CuPy read in other processes. Needs a GPU, torch and CuPy.

    PYTHONPATH=src python3 tests/gpu_ring.py ../target/release/daq

Prints a table. Exits with 1 if a check fails. The source `sim` counts 64-bit words through the whole stream, so that each byte
of each frame is known. The parts:

- `views`: `daq tap` and the HTTP server return the right bytes.
- `latency`: time from the publication of a frame until the process has the frame. Another process loads the position of the
  ring in a loop and so knows when the frame was published, to less than a microsecond.
- `rates`: the rate of the pipeline with clients, divided by the rate before and after, in alternating rounds. The clients
  compare all bytes of all frames.
- `kills`: what the daemon and the GPU use before and after clients were killed at random moments.
- `contents`: guaranteed frames and copies have the right bytes; a frame cannot be written.

`--memory host` runs all parts with NumPy, without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.gpu_parts import PARTS, row


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check and measure attached rings in GPU memory.")
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--parts", default=",".join(PARTS), help="default: all, %(default)s")
    parser.add_argument("--limit", type=float, default=1.0, help="factor of the time limit of each part")
    parser.add_argument("--memory", default="cuda:0")
    parser.add_argument("--frame", type=int, default=8 << 20, help="bytes per frame")
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--sources", default="1,3", help="`rates`: number of sources with a ring each")
    parser.add_argument("--pace", default="free", help="`rates`: `pace` of the sources")
    parser.add_argument("--pattern", default="counter", help="`rates`: `counter`, or `silence`, which is faster to make")
    parser.add_argument("--rounds", type=int, default=3, help="`rates`: number of rounds")
    parser.add_argument("--seconds", type=float, default=2.0, help="`rates`: duration of a measurement")
    parser.add_argument("--frames", type=int, default=5000, help="`latency`: number of frames")
    parser.add_argument("--frame-rate", type=int, default=1000, help="`latency`: frames per second")
    parser.add_argument("--kills", type=int, default=1000, help="`kills`: number of clients")
    parser.add_argument("--at-once", type=int, default=16, help="`kills`: number of clients at a time")
    parser.add_argument("--kill-seconds", type=float, default=200.0, help="`kills`: time after which no client is started")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    options = arguments().parse_args()
    if options.part:
        return 0 if PARTS[options.part][0](options) else 1
    print("| check | result | passed |\n|---|---|---|", flush=True)
    failed = False
    for part in options.parts.split(","):
        limit = PARTS[part][1] * options.limit
        start = time.monotonic()
        command = [sys.executable, __file__, *sys.argv[1:], "--part", part]
        # A group of its own, so that a part that hangs ends with all its processes.
        process = subprocess.Popen(command, start_new_session=True)
        try:
            code = process.wait(limit)
            if code != 0:
                failed = True
                print(f"part {part} exited with {code}", file=sys.stderr, flush=True)
        except subprocess.TimeoutExpired:
            failed = True
            row(part, f"no end after {limit:.0f} s", False)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        print(f"part {part}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
