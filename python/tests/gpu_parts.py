"""The parts of gpu_ring.py: each starts one pipeline, and prints one or more rows of a table."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import daq

from .gpu_client import expected

_SOURCE = """
[source.{name}]
driver = "sim"
ring = "{ring}"
samples = {{ type = "int64" }}
pattern = "{pattern}"
packet = "{packet} B"
pace = "{pace}"
backpressure = true
[ring.{ring}]
memory = "{memory}"
slot = "{frame} B"
slots = {slots}
attach = {{ guarantee = true, hold = "30 s" }}
[sink.{name}]
driver = "null"
input = "{ring}"
"""
_FOLDER = Path(__file__).parents[1]
# How much more the daemon and the GPU may use after clients were killed.
_MAX_GROWTH = {"descriptors": 0, "threads": 0, "resident MiB": 32, "GPU MiB": 2}


def row(part: str, result: str, passed: bool) -> bool:
    """Print a row and return whether the check passed."""
    print(f"| {part} | {result} | {'yes' if passed else '**no**'} |", flush=True)
    return bool(passed)


class Bench:
    """A running pipeline and its clients."""

    def __init__(self, options: argparse.Namespace, run: daq.Run) -> None:
        self.options, self.run = options, run
        self.pipeline = run.pipeline(120)
        self.socket = os.fspath(self.pipeline.socket)
        self.frame_bytes = next(iter(self.pipeline.rings.values())).layout.frame_bytes
        end = time.monotonic() + 60
        while any(ring.published == 0 for ring in self.rings().values()) and time.monotonic() < end:
            time.sleep(0.05)

    def rings(self) -> dict[str, daq.Ring]:
        (pipeline,) = daq.list(self.pipeline.socket.parent)
        return {name: ring for name, ring in pipeline.rings.items() if "@" not in name}

    def published(self, rings: Sequence[str]) -> int:
        known = self.rings()
        return sum(known[name].published for name in rings)

    def rate(self, rings: Sequence[str], seconds: float) -> float:
        """Return the bytes per second that the pipeline publishes."""
        first, start = self.published(rings), time.monotonic()
        time.sleep(seconds)
        return (self.published(rings) - first) / (time.monotonic() - start) * self.frame_bytes


@contextlib.contextmanager
def pipeline(
    options: argparse.Namespace, sources: dict[str, str], frame: int, pace: str, pattern: str = "counter"
) -> Iterator[Bench]:
    """Run a pipeline with one source for each ring in `sources`, whose values are the memory of the ring."""
    text = '[http]\nlisten = "127.0.0.1:0"\n'
    for ring, memory in sources.items():
        packet = min(frame, 1 << 20)
        values = {"name": f"{ring}-sim", "packet": packet, "pace": pace, "slots": options.slots}
        text += _SOURCE.format(ring=ring, memory=memory, frame=frame, pattern=pattern, **values)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        (path / "gpu.toml").write_text(text, encoding="utf-8")
        with daq.run("gpu.toml", cwd=path, state_dir=path / "state", binary=options.binary) as run:
            yield Bench(options, run)


class Client:
    """A process of gpu_client.py."""

    def __init__(self, *libraries: str) -> None:
        command = [sys.executable, "-m", "tests.gpu_client", *libraries]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=_FOLDER, env=environment())

    def send(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def call(self, **command: object) -> dict[str, Any]:
        """Run a command whose only answer is its result."""
        self.send(**command)
        return self.answer()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def clients(count: int, *libraries: str) -> Iterator[list[Client]]:
    """Start processes that have imported these libraries."""
    started = [Client(*libraries) for _ in range(count)]
    try:
        for client in started:
            client.answer()
        yield started
    finally:
        for client in started:
            client.close()


def environment() -> dict[str, str]:
    """Return the environment of processes of this folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(_FOLDER / "src"), str(_FOLDER)]), "OPENBLAS_NUM_THREADS": "1"}


def kinds(options: argparse.Namespace) -> dict[str, str]:
    """Return how frames are imported, and the library that each way needs."""
    if options.memory == "host":
        return {"numpy": "numpy"}
    return {"cupy": "cupy", "as_tensor": "torch", "from_dlpack": "torch"}


def is_exact(result: dict[str, Any]) -> bool:
    """Return whether a client read every frame, and all of them had the right bytes."""
    lost = ("invalid", "skipped", "wrong", "overrun", "discarded")
    return result["frames"] > 0 and not any(result[name] for name in lost)


def rates(options: argparse.Namespace) -> bool:
    """Measure the rate of the pipeline with and without clients that compare every byte."""
    passed = True
    for count in map(int, options.sources.split(",")):
        names = [f"voltages{i}" for i in range(count)]
        with contextlib.ExitStack() as stack:
            started = {name: stack.enter_context(clients(count, name)) for name in sorted(set(kinds(options).values()))}
            memory = dict.fromkeys(names, options.memory)
            with pipeline(options, memory, options.frame, options.pace, options.pattern) as bench:
                results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds(options)}
                alone, rates, ratios = [], {k: [] for k in results}, {k: [] for k in results}  # type: ignore[var-annotated]
                alone.append(bench.rate(names, options.seconds))
                for _ in range(options.rounds):
                    for kind, library in kinds(options).items():
                        for name, client in zip(names, started[library]):
                            command = {"command": "read", "kind": kind, "ring": name, "socket": bench.socket}
                            client.send(**command, seconds=options.seconds + 0.5, pattern=options.pattern)
                        for client in started[library]:
                            client.answer()
                        rates[kind].append(bench.rate(names, options.seconds))
                        results[kind] += [client.answer() for client in started[library]]
                        alone.append(bench.rate(names, options.seconds))
                        ratios[kind].append(rates[kind][-1] / statistics.mean(alone[-2:]))
                for kind, found in results.items():
                    total = {name: sum(result[name] for result in found) for name in found[0]}
                    ratio = statistics.median(ratios[kind])
                    passed &= row(
                        f"rate with {kind}, {count} rings",
                        f"{statistics.median(rates[kind]) / 1e9:.2f} GB/s ÷ {statistics.median(alone) / 1e9:.2f} GB/s without "
                        f"client: median ratio {ratio:.3f} of {', '.join(f'{r:.3f}' for r in ratios[kind])}; read and compared "
                        f"{total['frames']} frames, {total['frames'] * bench.frame_bytes / 1e9:.0f} GB: {total['wrong']} wrong "
                        f"numbers, {total['overrun']} overrun, {total['discarded']} discarded, {total['invalid']} invalid",
                        ratio >= 0.98 and all(map(is_exact, found)),
                    )
    return passed


def contents(options: argparse.Namespace) -> bool:
    """Check the bytes of guaranteed frames and of copies, and that a frame cannot be written."""
    passed = True
    with pipeline(options, {"voltages": options.memory}, options.frame, "4 Gbit/s") as bench:
        common = {"ring": "voltages", "socket": bench.socket}
        for kind, library in {**kinds(options), "copy": "numpy"}.items():
            with clients(1, library) as (client,):
                client.send(command="read", kind=kind, seconds=1.0, guarantee=kind != "copy", **common)
                client.answer()
                result = client.answer()
                # Copies skip frames that changed meanwhile.
                is_right = is_exact(result) or (kind == "copy" and result["frames"] > 0 and result["wrong"] == 0)
                name = "bytes of copies" if kind == "copy" else f"bytes of guaranteed frames, {kind}"
                passed &= row(name, f"{result}", is_right)
        for kind, library in kinds(options).items():
            with clients(1, library) as (client,):
                refused = client.call(command="write", kind=kind, **common)["refused"]
                passed &= row(f"write into a frame, {kind}", f"refused with {refused}", refused is not None)
    return passed


def latency(options: argparse.Namespace) -> bool:
    """Measure the time from publication to `frame` in a process that waits for frames."""
    passed = True
    rings = {"voltages": "host"} if options.memory == "host" else {"voltages": "host", "voltages-gpu": options.memory}
    frame = min(options.frame, 1 << 20)
    pace = f"{frame * 8 * options.frame_rate} bit/s"
    for ring, memory in rings.items():
        with pipeline(options, {ring: memory}, frame, pace) as bench:
            for kind, library in {"numpy": "numpy"}.items() if memory == "host" else kinds(options).items():
                with clients(1, library) as (reader,), clients(1) as (observer,):
                    reader.send(command="receive", kind=kind, ring=ring, socket=bench.socket, frames=options.frames)
                    reader.answer()
                    observer.send(command="observe", ring=ring, socket=bench.socket, frames=options.frames)
                    observer.answer()
                    received, published = reader.answer()["times"], observer.answer()["times"]
                    common = [index for index in received if index in published]
                    waits = np.array([[t - published[i] for t in received[i]] for i in common]) / 1000
                    (p50, array50), (p99, array99) = np.percentile(waits, [50, 99], axis=0)
                    passed &= row(
                        f"publication to frame, {memory}, {kind}",
                        f"p50 {p50:.0f} µs, p99 {p99:.0f} µs, largest {waits[:, 0].max():.0f} µs; to array p50 "
                        f"{array50:.0f} µs, p99 {array99:.0f} µs; {len(common)} frames of {frame >> 10} KiB at "
                        f"{options.frame_rate}/s",
                        len(common) >= options.frames // 2,
                    )
    return passed


def usage(pid: int, memory: str) -> dict[str, int]:
    """Return what a process and the GPU use."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    used = {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "resident MiB": int(status.split("VmRSS:")[1].split()[0]) >> 10,
    }
    if memory != "host" and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used["GPU MiB"] = int(output.split()[int(memory.partition(":")[2] or 0)])
    return used


def kills(options: argparse.Namespace) -> bool:
    """Kill clients, and compare what the daemon uses before and after."""
    with pipeline(options, {"voltages": options.memory}, options.frame, "16 Gbit/s") as bench:
        arguments = [bench.socket, "voltages"]

        def kill(count: int, at_once: int, seconds: float) -> dict[str, Any]:
            command = [sys.executable, "-m", "tests.gpu_kills", *arguments, str(count), str(at_once), str(seconds)]
            output = subprocess.run(command, capture_output=True, text=True, cwd=_FOLDER, env=environment(), check=False)
            if output.returncode != 0:
                raise RuntimeError(output.stderr)
            answer: dict[str, Any] = json.loads(output.stdout)
            return answer

        def settled(before: dict[str, int] | None) -> dict[str, int]:
            # The driver frees the memory of a killed process after the process has ended.
            end = time.monotonic() + 20
            while True:
                time.sleep(1)
                used = usage(bench.run.pid, options.memory)
                if before is None or time.monotonic() > end or all(used[n] <= before[n] + _MAX_GROWTH[n] for n in used):
                    return used

        # Threads and buffers that the first clients need remain.
        kill(options.at_once, options.at_once, 30)
        before = settled(None)
        result = kill(options.kills, options.at_once, options.kill_seconds)
        after = settled(before)
        left = bench.rings()["voltages"].clients
        moved = bench.rate(["voltages"], 1.0) > 0
    total = (bench.run.report or {})["clients"]["voltages"]
    return row(
        "killed clients",
        f"{result['killed']} of {options.kills} killed in {result['seconds']} s, {options.at_once} at once: "
        f"{result['attached']} while attached, {result['reading']} of them while reading; start takes {result['start_ms']} ms; "
        + "; ".join(f"{name} {before[name]} → {after[name]}" for name in before)
        + f"; {left} clients left; errors {result['errors']}; ledger {total}",
        result["killed"] >= options.kills
        and not result["errors"]
        and left == 0
        and moved
        and all(after[name] <= before[name] + _MAX_GROWTH[name] for name in after),
    )


def views(options: argparse.Namespace) -> bool:
    """Check the frames that `daq tap` and the HTTP server return."""
    with pipeline(options, {"voltages": options.memory}, options.frame, "4 Gbit/s") as bench:
        words = bench.frame_bytes // 8

        def tap(form: str) -> bytes:
            command = [options.binary, "tap", "voltages", "--count", "2", "--every", "10ms", "--format", form]
            command += ["--state-dir", os.fspath(bench.pipeline.socket.parent)]
            return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout

        def is_frame(array: Any) -> bool:
            flat = array.reshape(-1)
            return flat.size == words and bool((flat == expected(int(flat[0]) // words, words)).all())

        raw = np.frombuffer(tap("raw"), "<i8").reshape(2, -1)
        passed = row("daq tap --format raw", f"2 frames of {raw[0].nbytes} bytes", all(map(is_frame, raw)))
        file = io.BytesIO(tap("npy"))
        arrays = [np.load(file) for _ in range(2)]
        passed &= row("daq tap --format npy", f"{arrays[0].dtype} {arrays[0].shape}", all(map(is_frame, arrays)))
        lines = [json.loads(line) for line in tap("json").splitlines()]
        numbers = [np.array(next(v for v in line.values() if isinstance(v, list) and len(v) == words)) for line in lines]
        passed &= row("daq tap --format json", f"{len(lines)} lines", len(lines) == 2 and all(map(is_frame, numbers)))

        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"http://{bench.pipeline.http}/rings/voltages"
        with opener.open(f"{url}/frame.npy", timeout=30) as reply:
            number, array = int(reply.headers["daq-sequence"]), np.load(io.BytesIO(reply.read()))
        is_right = bool((array.reshape(-1) == expected(number, words)).all())
        passed &= row("/rings/voltages/frame.npy", f"frame {number}, {array.dtype} {array.shape}", is_right)

        first, points = words // 3, min(4000, words // 2)
        with opener.open(f"{url}/scope?width=4096&first={first}&points={points}", timeout=30) as reply:
            header: dict[str, Any] = {}
            # Messages without data describe the ring.
            while "sequence" not in header:
                size, length = struct.unpack("<II", reply.read(8))
                header, data = json.loads(reply.read(size)), np.frombuffer(reply.read(length), "<f4")
        curve = expected(header["sequence"], words)[first : first + points].astype("<f4")
        is_right = [entry["name"] for entry in header["arrays"]][:2] == ["min", "max"]
        is_right &= np.array_equal(data[:points], curve) and np.array_equal(data[points : 2 * points], curve)
        passed &= row("/rings/voltages/scope", f"frame {header['sequence']}, {points} points", bool(is_right))
    return passed


#: The parts, and the time limit of each in seconds. Writes into frames are last, because they end in a fault of the GPU.
PARTS = {
    "views": (views, 90),
    "latency": (latency, 120),
    "rates": (rates, 240),
    "kills": (kills, 270),
    "contents": (contents, 120),
}
