"""Attaches to a ring of a running pipeline."""

from __future__ import annotations

import asyncio
import datetime
import math
import os
import re
import sys
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Literal, Union

import numpy as np

from . import _arguments
from ._arguments import Time
from ._attached_frame import AttachedFrame
from ._connection import Connection
from ._cuda import CudaMemory, Mark
from ._errors import AttachError, DaqError, OverrunError, RevokedError
from ._lease import DISCARDED, READ, Counts, Lease
from ._memory import HostMemory
from ._pipelines import find, layout_of
from ._samples import Array
from ._state import Record, RingState

#: Where reading begins.
At = Union[Literal["next", "newest", "oldest"], Time]
#: A length of time: seconds, or a text with a unit.
Interval = Union[int, float, str, datetime.timedelta, np.timedelta64]

_REPORT_INTERVAL = 0.1
# Maximum time of one wait, after which the socket and ended leases are checked.
_WAIT_LIMIT = 0.1
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def attach(
    ring: str,
    *,
    at: At = "next",
    every: int = 1,
    interval: Interval = 0.0,
    newest: bool | None = None,
    guarantee: bool = False,
    copy: bool = False,
    pipeline: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    socket: str | os.PathLike[str] | None = None,
) -> Attachment:
    """Attach to a ring of a running pipeline. The result is an iterator of frames and a context manager.

    ```python
    with daq.attach("voltages") as ring:
        for frame in ring:
            samples = numpy.asarray(frame)
    ```

    `ring` is the name of the ring. `pipeline` is only needed if several running pipelines have such a ring. `state_dir` is the
    directory that `daq run --state-dir` names; `socket` is the path of the socket, if it is elsewhere.

    `at` is where reading begins: with the `"next"` published frame, with the `"newest"` or `"oldest"` frame in the ring, or
    with the first frame whose time is not before a `numpy.datetime64` or a `datetime`.

    `every` returns only frames whose index is a multiple of this integer. `interval` returns at most one frame in this time: a
    number of seconds, a text such as `"100 ms"`, a `timedelta` or a `numpy.timedelta64`.

    `newest` decides what happens if the client is slower than the producer. True skips to the newest frame. False returns the
    frames in order, and skips only frames that were overwritten. Default: true, but false with `guarantee` or `at`.

    `guarantee` lets the producer wait for this client instead of overwriting frames. The configuration of the ring must allow
    it.

    `copy` returns frames whose payload was copied to host memory and checked; frames that changed meanwhile are skipped.

    Raises AttachError if there is no such ring, or if the daemon refuses, and TypeError or ValueError for a wrong argument.
    """
    _arguments.text("ring", ring)
    if socket is None:
        socket = find(ring, pipeline, state_dir).socket
    return Attachment(socket, ring, at=at, every=every, interval=interval, newest=newest, guarantee=guarantee, copy=copy)


class Attachment:
    """An attached ring: an iterator and async iterator of frames. Leaving its context ends the access."""

    def __init__(
        self,
        socket: str | os.PathLike[str],
        ring: str,
        *,
        at: At = "next",
        every: int = 1,
        interval: Interval = 0.0,
        newest: bool | None = None,
        guarantee: bool = False,
        copy: bool = False,
    ) -> None:
        self._every, self._interval = _distance(every), _seconds(interval)
        begin, self._begin_ns = _begin(at)
        #: Whether the producer waits for this client.
        self.guarantee = _arguments.flag("guarantee", guarantee)
        self._newest = (not guarantee and begin == "next") if newest is None else _arguments.flag("newest", newest)
        self._copy = _arguments.flag("copy", copy)
        self._due = 0.0
        #: Index of the newest frame that is kept while no frame is due, and when it was seen first.
        self._newest_index, self._newest_since = -1, 0.0
        self._reported_at = time.monotonic()
        self._is_over = False
        #: Whether the daemon reported the end of the run.
        self._has_ended = False
        self._error: DaqError | None = None
        self._frame: weakref.ref[AttachedFrame] | None = None
        self._run: Any = None
        self._connection = Connection(_arguments.path("socket", socket))
        try:
            client = os.path.basename(sys.argv[0] or "python")[:64] if sys.argv else "python"
            request = {"request": "attach", "ring": ring, "guarantee": self.guarantee, "at": begin, "client": client}
            reply, fds = self._connection.request(request)
            try:
                self._map(reply["ring"], fds)
            finally:
                for fd in fds:
                    os.close(fd)
        except BaseException:
            self._connection.close()
            raise

    def _map(self, ring: dict[str, Any], fds: list[int]) -> None:
        if len(fds) != 2:
            raise AttachError(f"the daemon sent {len(fds)} file descriptors instead of 2")
        self.name = str(ring["name"])
        self.layout = layout_of(ring)
        try:
            self.layout.shape()
        except ValueError as error:
            raise AttachError(f"ring {self.name}: {error}; install the version of this package of the daemon") from error
        self.slots = int(ring["slots"])
        #: Names of the kept fields.
        self.kept: list[str] = list(ring.get("kept", []))
        #: Time in seconds for which the daemon lets a client with a guarantee hold a frame.
        self._hold = float(ring.get("hold", math.inf))
        self._stride = int(ring["stride"])
        self._slot_bytes = int(ring["slot_bytes"])
        self.state = RingState(fds[0], ring)
        place = ring["memory"]
        self.memory: HostMemory | CudaMemory
        if place["kind"] == "host":
            self.memory = HostMemory(fds[1], self.slots * self._stride)
        else:
            self.memory = CudaMemory(fds[1], str(place["uuid"]), int(place["bytes"]))
        self._counts = Counts(int(ring["first"]))

    def read(self, timeout: float | None = None) -> AttachedFrame | None:
        """Return the next frame. Returns None after `timeout` seconds, after the last frame of the run, and after `close`.

        Raises RevokedError if the daemon ended the access.
        """
        end = None if timeout is None else time.monotonic() + _arguments.seconds("timeout", timeout)
        while True:
            frame = self._take()
            if frame is not None or self._is_over:
                return frame
            limit = _WAIT_LIMIT if end is None else min(_WAIT_LIMIT, end - time.monotonic())
            if limit <= 0:
                return None
            self._wait(limit)

    @property
    def position(self) -> int:
        """Index of the next frame in the ring that was not started."""
        return self._counts.position

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of frames: `read`, `overrun` (overwritten before they were read), `discarded` (skipped, or changed
        while they were read)."""
        self._counts.retire()
        return {name: getattr(self._counts, name) for name in ("read", "overrun", "discarded")}

    @property
    def ended(self) -> bool:
        """Whether the run has ended, and its last frame was returned."""
        return self._is_over

    def address(self, index: int) -> int:
        """Return the address of the payload of a frame, in the memory of the host or of the GPU."""
        return self.memory.address + index % self.slots * self._stride

    def copy(self, index: int, length: int) -> Array:
        """Return a copy of the payload of a frame in host memory. Raises OverrunError if the frame changed meanwhile."""
        copied = self.memory.read(index % self.slots * self._stride, min(length, self._slot_bytes))
        if not self.state.is_intact(index):
            raise OverrunError(
                f"frame {index} of ring {self.name} was overwritten before it was copied; increase `slots` of the ring, or "
                "attach with guarantee=True"
            )
        return copied

    def _take(self) -> AttachedFrame | None:
        """Return the next frame if it can be read now."""
        self._finish()
        if self.guarantee:
            # After a revocation, frames can be overwritten at any time.
            self._listen()
        if self._error is not None:
            raise self._error
        if self._is_over:
            return None
        is_closed = self._has_ended or self.state.is_closed
        frame = self._next_frame()
        if frame is None and is_closed and self._counts.position >= self.state.published:
            self._is_over = True
        is_reported = self._report(force=self._is_over or (self.guarantee and self._counts.retire()))
        if frame is None or is_reported:
            self._listen()
        if frame is None and self._error is not None:
            raise self._error
        return frame

    def _next_frame(self) -> AttachedFrame | None:
        counts = self._counts
        while True:
            published = self.state.published
            if published <= counts.position:
                return None
            if time.monotonic() < self._due:
                if not self._newest:
                    counts.skip(self._kept(published))
                return None
            index = self._choose(published)
            if index is None:
                return None
            record = self.state.record(index)
            if not self.guarantee and not self.state.is_intact(index):
                counts.overtake(index + 1)
                continue
            frame = self._start(index, record)
            if frame is not None:
                if self._interval:
                    self._due = time.monotonic() + self._interval
                return frame

    def _kept(self, published: int) -> int:
        """Return the index up to which frames are skipped while no frame is due.

        The newest frame is kept, because the ring may be full while an array still refers to the last frame. It is not kept for
        so long that the daemon would revoke this client.
        """
        newest, now = published - 1, time.monotonic()
        if newest != self._newest_index:
            self._newest_index, self._newest_since = newest, now
        if now - self._newest_since > self._hold / 2:
            return published
        return max(self._counts.position, newest)

    def _choose(self, published: int) -> int | None:
        """Skip to the next frame to read and return its index; None if it is not published yet."""
        counts = self._counts
        if not self.guarantee and not self._newest:
            reserved = self.state.reserved
            if reserved > counts.position + self.slots:
                counts.overtake(max(counts.position, min(reserved - self.slots * 3 // 4, published - 1)))
        # The multiple of `every` at or before the newest frame, or at or after the next one.
        first = published - 1 if self._newest else counts.position + self._every - 1
        index = first // self._every * self._every
        if not counts.position <= index < published:
            counts.skip(published)
            return None
        if index > counts.position:
            counts.skip(index)
        return index

    def _start(self, index: int, record: Record) -> AttachedFrame | None:
        """Begin to read frame `index`. Returns None if it is before the time at which reading begins, or was overwritten."""
        if self._begin_ns is not None:
            if record.time_ns < self._begin_ns:
                self._counts.skip(index + 1)
                return None
            self._begin_ns = None
        run = self._counts.begin()
        if self._copy:
            run.done = True
            try:
                copied = self.copy(index, record.length)
            except OverrunError:
                run.use = DISCARDED
                return None
            return AttachedFrame(self, index, record, None, copied)
        streams: set[int] = set()
        lease = None
        if self.guarantee:
            lease = Lease(lambda: self._end(run, streams))
            lease.streams = streams
        frame = AttachedFrame(self, index, record, lease, None)
        self._frame, self._run = weakref.ref(frame), (run, index)
        return frame

    def _end(self, run: Any, streams: set[int]) -> None:
        """End a lease. Work on a GPU that reads the frame must be done before the frame can be overwritten."""
        if not (streams and isinstance(self.memory, CudaMemory)):
            run.done = True
            return
        try:
            run.done = Mark(self.memory, streams)
        except AttachError as error:
            # The GPU may still read the frame, so the frame never retires.
            self._error = self._error or error

    def _finish(self) -> None:
        """End the use of the last frame that was returned."""
        frame = self._frame() if self._frame is not None else None
        if frame is not None:
            frame.release()
        if self._run is not None and not self.guarantee:
            run, index = self._run
            run.use = READ if self.state.is_intact(index) else DISCARDED
            run.done = True
        self._frame = self._run = None

    def _wait(self, limit: float) -> None:
        """Wait until there may be a frame."""
        position = self._counts.position
        pause = self._due - time.monotonic()
        if pause > 0:
            limit = min(limit, pause)
            if not self.guarantee:
                time.sleep(limit)
                return
            position = max(position, self.state.published)
        if self.guarantee and self._counts.in_use:
            # The end of a lease in another thread, or on the GPU, must be reported soon.
            limit = min(limit, 0.005)
        self.state.wait(position, limit)

    def _report(self, *, force: bool) -> bool:
        """Report the counts to the daemon if it is time to do so. Returns whether they were reported."""
        now = time.monotonic()
        if not force and now - self._reported_at < _REPORT_INTERVAL:
            return False
        self._counts.retire()
        self._reported_at = now
        self._connection.send(self._counts.progress())
        return True

    def _listen(self) -> None:
        """Handle packets of the daemon."""
        while self._error is None and not self._has_ended:
            packet = self._connection.receive()
            if packet is None:
                return
            if "ended" in packet:
                self._has_ended = True
            elif "revoked" in packet:
                self._error = RevokedError(f"the daemon ended the access to ring {self.name}: {packet['revoked']}")
            elif "closed" in packet:
                self._error = RevokedError(f"the daemon of ring {self.name} closed the connection; was it killed?")

    def close(self) -> None:
        """End the access. Arrays of frames remain readable; frames without a guarantee may change."""
        if self._connection.fileno() >= 0:
            self._finish()
            self._report(force=True)
            self._connection.close()
        self._is_over = True

    def __iter__(self) -> Iterator[AttachedFrame]:
        return self

    def __next__(self) -> AttachedFrame:
        frame = self.read()
        if frame is None:
            raise StopIteration
        return frame

    def __aiter__(self) -> AsyncIterator[AttachedFrame]:
        return self

    async def __anext__(self) -> AttachedFrame:
        loop = asyncio.get_running_loop()
        while True:
            frame = self._take()
            if frame is not None:
                return frame
            if self._is_over:
                raise StopAsyncIteration
            await loop.run_in_executor(None, self._wait, _WAIT_LIMIT)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Attachment:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()

    def __repr__(self) -> str:
        return (
            f"<Attachment {self.name}: {self.layout.dtype} {self.layout.shape()}, {self.slots} slots, position {self.position}>"
        )


def _begin(at: At) -> tuple[str, int | None]:
    """Return the frame with which reading begins, and the time before which frames are skipped."""
    if isinstance(at, (np.datetime64, datetime.datetime)):
        return "oldest", _arguments.nanoseconds("at", at)
    if isinstance(at, str) and at in ("next", "newest", "oldest"):
        return at, None
    kind = ValueError if isinstance(at, str) else TypeError
    raise kind(f'`at` must be "next", "newest", "oldest", a numpy.datetime64 or a datetime, not {at!r}')


def _distance(every: int) -> int:
    """Return the distance between the indices of two frames."""
    # A numpy.timedelta64 is also a numpy.integer.
    is_time = isinstance(every, (float, str, np.floating, datetime.timedelta, np.timedelta64))
    if is_time or isinstance(every, bool) or not isinstance(every, (int, np.integer)):
        raise TypeError(f"`every` must be a number of frames, not {every!r}; `interval` is the time between two frames")
    if every < 1:
        raise ValueError(f"`every` must be at least 1, not {every}")
    return int(every)


def _seconds(interval: Interval) -> float:
    """Return a time in seconds."""
    if isinstance(interval, np.timedelta64):
        seconds = float(interval / np.timedelta64(1, "s"))
    elif isinstance(interval, datetime.timedelta):
        seconds = interval.total_seconds()
    elif isinstance(interval, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zµ]+)\s*", interval)
        if not match or match[2] not in _UNITS:
            raise ValueError(f"`interval` must be a time such as '1 s' or '100 ms', not {interval!r}")
        seconds = float(match[1]) * _UNITS[match[2]]
    elif isinstance(interval, (int, float, np.integer, np.floating)) and not isinstance(interval, bool):
        seconds = float(interval)
    else:
        raise TypeError(f"`interval` must be a time such as '1 s' or 0.5 (seconds), not {interval!r}")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"`interval` must not be negative or infinite, not {interval!r}")
    return seconds
