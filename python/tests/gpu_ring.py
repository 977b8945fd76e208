#!/usr/bin/env python3
"""Checks and measures rings in GPU memory that torch and CuPy read in this process. Needs a GPU, torch and CuPy.

    PYTHONPATH=src python3 tests/gpu_ring.py ../target/release/daq

Prints one JSON object per check: bytes of frames, refused writes, time from publication to frame, rate of the pipeline without
and with a client, and memory and descriptors of the daemon after clients were killed. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import daq

FRAME = 4 << 20
PACKET = 1 << 12
COUNT = 16
CONFIG = """
[source.detector]
driver = "replay"
path = "capture.pcap"
port = 4954
speed = "free"
loop = true
ring = "raw"
samples = {{ type = "int16", rate = "1 MHz" }}
[source.detector.format]
kind = "raw"
header = "16 B"
payload = "{packet} B"
sequence = {{ offset = 0, bytes = 8, endian = "big" }}
keep = [{{ name = "id", offset = 8, bytes = 8, endian = "big" }}]
[ring.raw]
memory = "cuda:0"
slot = "{frame} B"
slots = 16
attach = {{ guarantee = true, hold = "30 s" }}
[sink.none]
driver = "null"
input = "raw"
"""
CLIENT = """
import sys, torch, daq
with daq.attach("raw", state_dir=sys.argv[1], newest=False) as ring:
    for frame in ring:
        torch.from_dlpack(frame).sum()
        print(frame.index, flush=True)
"""


def payloads() -> list[bytes]:
    """Return the payload of each frame of the capture."""
    generator = np.random.default_rng(1)
    return [generator.integers(-32768, 32767, FRAME // 2, "<i2").tobytes() for _ in range(COUNT)]


def write_capture(path: Path, frames: list[bytes]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    pcap = importlib.import_module("tests.pcap")
    per_frame = FRAME // PACKET
    pcap.write(
        path,
        (
            (n * per_frame + i, struct.pack(">QQ", n * per_frame + i, n) + frame[i * PACKET : (i + 1) * PACKET])
            for n, frame in enumerate(frames)
            for i in range(per_frame)
        ),
    )


class Checks:
    """The checks of one pipeline."""

    def __init__(self, state: Path, run: daq.Run, frames: list[bytes], options: argparse.Namespace) -> None:
        self.state, self.run, self.frames, self.options = state, run, frames, options
        self.torch: Any = importlib.import_module("torch")
        self.cupy: Any = importlib.import_module("cupy")
        self.expected = [self.torch.frombuffer(bytearray(frame), dtype=self.torch.int16).cuda() for frame in frames]
        self.failed = False

    def report(self, check: str, passed: bool, **values: object) -> None:
        print(json.dumps({"check": check, "passed": bool(passed), **values}), flush=True)
        self.failed |= not passed

    def attach(self, **options: Any) -> daq.Attachment:
        return daq.attach("raw", state_dir=self.state, **options)

    def bytes(self, name: str, **options: Any) -> None:
        valid = wrong = missing = 0
        with self.attach(newest=False, **options) as ring:
            for _ in range(self.options.frames):
                frame = next(ring)
                if options.get("copy"):
                    data = self.torch.from_numpy(np.array(frame)).cuda()
                elif name == "cupy":
                    data = self.torch.as_tensor(self.cupy.asarray(frame), device="cuda")
                else:
                    data = self.torch.from_dlpack(frame)
                same = bool((data.flatten() == self.expected[frame["id"]]).all())
                if frame.flags & daq.Flags.INCOMPLETE:
                    missing += 1
                elif frame.valid:
                    valid, wrong = valid + 1, wrong + (not same)
                del data
            counts = ring.counts
        self.report(f"bytes {name}", wrong == 0 and valid > 0, valid=valid, wrong=wrong, incomplete=missing, counts=counts)

    def refused_write(self) -> None:
        script = CLIENT.replace(".sum()", ".fill_(1); torch.cuda.synchronize()")
        done = subprocess.run([sys.executable, "-c", script, self.state], capture_output=True, timeout=120, check=False)
        self.report("write is refused", done.returncode != 0, error=done.stderr.decode().strip()[-120:])

    def latency(self) -> None:
        times = []
        with self.attach() as ring:
            for _ in range(self.options.frames):
                ring.state.wait(ring.position, 1.0)
                while ring.state.published <= ring.position:
                    pass
                seen = time.perf_counter_ns()
                frame = ring.read()
                if frame is None:
                    break
                self.torch.from_dlpack(frame)
                times.append((time.perf_counter_ns() - seen) / 1000)
        p50, p99 = np.percentile(times, [50, 99])
        self.report("publication seen to tensor", True, p50_us=round(p50, 1), p99_us=round(p99, 1), frames=len(times))

    def rate(self, seconds: float) -> float:
        def published() -> int:
            return daq.list(self.state)[0].rings["raw"].published

        first, start = published(), time.monotonic()
        time.sleep(seconds)
        return (published() - first) / (time.monotonic() - start) * FRAME / 1e9

    def rates(self) -> None:
        ratios = []
        for _ in range(3):
            without = self.rate(self.options.seconds)
            client = subprocess.Popen([sys.executable, "-c", CLIENT, self.state], stdout=subprocess.PIPE)
            try:
                assert client.stdout is not None
                client.stdout.readline()
                subprocess.Popen(["cat"], stdin=client.stdout, stdout=subprocess.DEVNULL)
                with_client = self.rate(self.options.seconds)
            finally:
                client.send_signal(signal.SIGKILL)
                client.wait()
            ratios.append(with_client / without)
            print(json.dumps({"without_gb_s": round(without, 2), "with_gb_s": round(with_client, 2)}), flush=True)
        self.report("rate with a client", float(np.median(ratios)) >= 0.98, ratios=[round(ratio, 3) for ratio in ratios])

    def killed(self) -> None:
        def used() -> tuple[int, int]:
            free, total = self.torch.cuda.mem_get_info()
            return len(os.listdir(f"/proc/{self.run.pid}/fd")), (total - free) >> 20

        before = used()
        for _ in range(self.options.kills // 10 or 1):
            clients = [subprocess.Popen([sys.executable, "-c", CLIENT, self.state], stdout=subprocess.PIPE) for _ in range(10)]
            for client in clients:
                assert client.stdout is not None
                client.stdout.readline()
                client.kill()
                client.wait()
                client.stdout.close()
        time.sleep(1)
        after = used()
        passed = after[0] <= before[0] + 1 and after[1] <= before[1] + 64
        self.report("killed clients", passed, kills=self.options.kills, before=before, after=after)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and measure attached rings in GPU memory.")
    parser.add_argument("binary")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        frames = payloads()
        write_capture(path / "capture.pcap", frames)
        (path / "gpu.toml").write_text(CONFIG.format(packet=PACKET, frame=FRAME), encoding="utf-8")
        with daq.run("gpu.toml", cwd=path, state_dir=path / "state", binary=options.binary) as run:
            ring = run.pipeline().rings["raw"]
            print(json.dumps({"memory": ring.memory, "attachable": ring.attachable}), flush=True)
            checks = Checks(path / "state", run, frames, options)
            for name in ("torch", "cupy"):
                checks.bytes(name)
            checks.bytes("torch guaranteed", guarantee=True)
            checks.bytes("host copy", copy=True)
            for check in (checks.latency, checks.rates, checks.refused_write, checks.killed):
                check()
        print(json.dumps({"clients": (run.report or {}).get("clients")}))
    return int(checks.failed)


if __name__ == "__main__":
    sys.exit(main())
