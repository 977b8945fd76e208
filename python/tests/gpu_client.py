"""A process that reads rings of `sim` with the pattern `counter` or `silence`, and compares every byte with this pattern.

Commands arrive on stdin and results leave on stdout, as one JSON object per line, so that the time of imports is not measured.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import daq

# Maximum time of one step of a loop that loads a position.
_MAX_STEP_NS = 5000


def expected(number: int, words: int) -> Any:
    """Return the words of frame `number`: the pattern counts 64-bit words through the whole stream."""
    return np.arange(number * words, (number + 1) * words, dtype="<i8")


class Comparison:
    """Counts the words of frames that differ from the pattern, where the frames are: in host or GPU memory."""

    def __init__(self, kind: str, words: int, pattern: str = "counter") -> None:
        self.kind = kind
        # The pattern `silence` is zeros.
        self.step = words if pattern == "counter" else 0
        base = expected(0, words) if pattern == "counter" else np.zeros(words, dtype="<i8")
        if kind == "cupy":
            self.library: Any = importlib.import_module("cupy")
            self.base = self.library.asarray(base)
        elif kind in ("as_tensor", "from_dlpack"):
            self.library = importlib.import_module("torch")
            self.base = self.library.from_numpy(base).cuda()
        else:
            self.library, self.base = np, base

    def array(self, frame: daq.AttachedFrame) -> Any:
        """Return the samples of a frame in place, as this library imports them."""
        if self.kind == "as_tensor":
            return self.library.as_tensor(frame, device="cuda")
        if self.kind == "from_dlpack":
            return self.library.from_dlpack(frame)
        return self.library.asarray(frame)

    def wrong(self, frame: daq.AttachedFrame) -> Any:
        """Return the number of wrong words in a frame, as a number of this library. Does not wait for the GPU."""
        return self.library.count_nonzero(self.array(frame).reshape(-1) - self.base != frame.number * self.step)


def read(kind: str, ring: str, socket: str, seconds: float, pattern: str = "counter", **options: Any) -> dict[str, Any]:
    """Read frames in order for some time."""
    frames = invalid = skipped = 0
    last = None
    options.update(socket=socket, newest=False, copy=kind == "copy")
    with daq.attach(ring, **options) as attached:
        # The first call of each function of a GPU library loads code. Meanwhile the producer would overwrite the whole ring.
        comparison = Comparison(kind, attached.layout.frame_bytes // 8, pattern)
        frame = next(attached)
        wrong = comparison.wrong(frame)
        wrong = wrong + wrong if frame.valid else wrong
        wrong = wrong - wrong
    with daq.attach(ring, **options) as attached:
        print(json.dumps({"attached": ring}), flush=True)
        end = time.monotonic() + seconds
        for frame in attached:
            found = comparison.wrong(frame)
            frames += 1
            if frame.valid:
                wrong = wrong + found
            else:
                invalid += 1
            skipped += last is not None and frame.number != last + 1
            last = frame.number
            if time.monotonic() >= end:
                break
    return {"frames": frames, "invalid": invalid, "skipped": skipped, "wrong": int(wrong), **attached.counts}


def observe(ring: str, socket: str, frames: int) -> dict[str, Any]:
    """Return when each frame was published, as seen by a loop that only loads the position and the time.

    Frames are left out if this process was interrupted when they were published.
    """
    times: dict[int, int] = {}
    with daq.attach(ring, socket=socket) as attached:
        state = attached.state
        seen = state.published
        print(json.dumps({"attached": ring}), flush=True)
        end = seen + frames
        while seen < end:
            before = time.monotonic_ns()
            while (published := state.published) == seen:
                before = time.monotonic_ns()
            now = time.monotonic_ns()
            if now - before < _MAX_STEP_NS:
                times.update(dict.fromkeys(range(seen, published), now))
            seen = published
    return {"times": times}


def receive(kind: str, ring: str, socket: str, frames: int) -> dict[str, Any]:
    """Return when this process got each frame, and when it had an array of the frame."""
    times: dict[int, tuple[int, int]] = {}
    with daq.attach(ring, socket=socket, newest=False) as attached:
        array = Comparison(kind, 1).array
        for _ in range(10):
            array(next(attached))
        print(json.dumps({"attached": ring}), flush=True)
        for frame in attached:
            got = time.monotonic_ns()
            array(frame)
            times[frame.index] = (got, time.monotonic_ns())
            if len(times) == frames:
                break
    return {"times": times}


def write(kind: str, ring: str, socket: str) -> dict[str, Any]:
    """Try to write into a frame. An error of the GPU ends this process."""
    with daq.attach(ring, socket=socket) as attached:
        array = Comparison(kind, 1).array(next(attached))
        try:
            array[:] = 1
            if kind == "cupy":
                importlib.import_module("cupy").cuda.Device().synchronize()
            elif kind != "numpy":
                importlib.import_module("torch").cuda.synchronize()
        except Exception as error:  # noqa: BLE001, RUF100 - libraries raise different classes
            return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {"refused": None}


def main() -> None:
    # Imports before the first command.
    for library in sys.argv[1:]:
        importlib.import_module(library)
    print(json.dumps({"ready": True}), flush=True)
    commands: dict[str, Callable[..., dict[str, Any]]] = {"read": read, "observe": observe, "receive": receive, "write": write}
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(commands[command.pop("command")](**command)), flush=True)


if __name__ == "__main__":
    main()
