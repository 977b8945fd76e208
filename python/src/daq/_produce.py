"""Writes frames into a source with the driver `process`, which publishes them in its ring.

The protocol is described in "The attach protocol" of the documentation.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
from types import TracebackType

import numpy as np
import numpy.typing as npt

from . import _arguments
from ._arguments import Time
from ._connection import Connection
from ._errors import AttachError, RevokedError
from ._flags import CLOCKS, Flags
from ._frame import Frame
from ._pipelines import Pipeline, describe, pipelines
from ._samples import Layout

_ALIGNMENT = 64
_COMMIT = struct.Struct("<QQQQ")
_ACKNOWLEDGEMENT = struct.Struct("<QQ")
# Number of frames on their way from this process to the ring.
_SLOTS = 8


def produce(
    source: str,
    *,
    like: str | None = None,
    slots: int = _SLOTS,
    pipeline: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    socket: str | os.PathLike[str] | None = None,
) -> Producer:
    """Produce the frames of a source with the driver `process`. The result is a context manager.

    ```python
    with daq.attach("voltages") as ring, daq.produce("flags", like="voltages") as flags:
        for frame in ring:
            flags.write(abs(frame.values()) > 100, frame)
    ```

    `source` is the name of the source. `like` is the name of a ring whose frames must have as many samples and channels as
    those of the source. `slots` is the number of frames that can be on their way to the ring, 1 to 1024. The other arguments
    are those of `attach`.

    Raises AttachError if there is no such source, if another process produces its frames, or if `like` has another shape, and
    TypeError or ValueError for a wrong argument.
    """
    _arguments.text("source", source)
    if like is not None:
        _arguments.text("like", like)
    if not 1 <= _arguments.integer("slots", slots) <= 1024:
        raise ValueError(f"`slots` must be 1 to 1024, not {slots}")
    running = [describe(socket)] if socket is not None else pipelines(state_dir)
    found = [p for p in running if pipeline in (None, p.name) and source in p.sources]
    if len(found) != 1:
        known = "; ".join(f"{p.name} has {', '.join(sorted(p.sources)) or 'none'}" for p in running) or "no pipeline runs"
        what = "several pipelines have a" if found else "no pipeline has a"
        raise AttachError(f'{what} source {source!r} with driver = "process": {known}')
    if like is not None:
        _check_like(found[0], source, like)
    return Producer(found[0], source, slots)


def _check_like(pipeline: Pipeline, source: str, like: str) -> None:
    if like not in pipeline.rings:
        raise AttachError(f"no ring {like!r} in pipeline {pipeline.name}; it has {', '.join(sorted(pipeline.rings))}")
    own, other = pipeline.rings[pipeline.sources[source].ring].layout, pipeline.rings[like].layout
    if (own.points, own.channels, own.order) != (other.points, other.channels, other.order):
        raise AttachError(
            f"source {source} has frames of {own.points} points and {own.channels} channels ({own.order}), ring {like} of "
            f"{other.points} points and {other.channels} channels ({other.order}); change `frame` and `samples` of the source"
        )


class Producer:
    """Writes the frames of a source. Leaving its context waits until all frames are in the ring, and ends the production."""

    def __init__(self, pipeline: Pipeline, source: str, slots: int = _SLOTS) -> None:
        about = pipeline.sources[source]
        self.name = source
        #: Name of the ring that gets the frames.
        self.ring = about.ring
        #: Type and shape of the frames.
        self.layout: Layout = pipeline.rings[about.ring].layout
        self._frame_bytes = about.frame_bytes
        self._stride = -(-about.frame_bytes // _ALIGNMENT) * _ALIGNMENT
        self._slots = slots
        self._committed = self._done = self._refused = 0
        self._error: RevokedError | None = None
        self._has_ended = False
        fd = _memory_file(slots * self._stride)
        try:
            self._inbox = np.frombuffer(mmap.mmap(fd, slots * self._stride), np.uint8)
            self._connection = Connection(pipeline.socket)
            try:
                self._connection.request({"request": "produce", "source": source}, [fd])
            except BaseException:
                self._connection.close()
                raise
        finally:
            os.close(fd)

    @property
    def written(self) -> int:
        """Number of frames that were written."""
        return self._committed

    @property
    def refused(self) -> int:
        """Number of frames that were dropped because the ring was full; only with `backpressure = false`."""
        return self._refused

    def write(
        self,
        values: npt.ArrayLike,
        like: Frame | None = None,
        *,
        time: Time | None = None,
        clock: str = "host",
    ) -> None:
        """Write one frame. Waits while all slots are on their way to the ring.

        `values` must have as many elements as a frame, in the order of `layout`. They are converted to the type of the source
        if this type is of the same kind or a more general one. The frame gets the time and the flags of the frame
        `like`, from which the values were calculated, or `time` of `clock`; default: none.

        Raises ValueError if the number of elements is wrong, if integers are too large for the type of the source, or after
        `close`; TypeError if the type cannot be converted; and RevokedError if the daemon ended the access.
        """
        self._check_open()
        ns, clock = _timestamp(like, time, clock)
        flags = Flags(0) if like is None else like.flags & ~Flags.EPOCH
        array = np.asarray(values)
        target = self._inbox[self._committed % self._slots * self._stride :][: self._frame_bytes].view(self.layout.dtype)
        shape = self.layout.shape(self._frame_bytes)
        if array.size != target.size or (array.ndim > 1 and _without_ones(array.shape) != _without_ones(shape)):
            raise ValueError(f"a frame of source {self.name} has the shape {shape}, not {array.shape}")
        if not np.can_cast(array.dtype, target.dtype, "same_kind"):
            raise TypeError(f"source {self.name} has samples of {target.dtype}; convert the {array.dtype} values")
        if target.dtype.kind in "iu" and not np.can_cast(array.dtype, target.dtype):
            limits, low, high = np.iinfo(target.dtype), int(array.min()), int(array.max())
            if low < limits.min or high > limits.max:
                raise ValueError(f"source {self.name} has samples of {target.dtype}; the values are {low} to {high}")
        self._wait(self._slots - 1, None)
        np.copyto(target, array.reshape(-1), casting="same_kind")
        commit = _COMMIT.pack(self._committed % self._slots, ns, CLOCKS.index(clock), flags)
        while not self._connection.send_bytes(commit):
            # The socket is full while the daemon waits for a free slot of the ring.
            self._receive(0.1)
            if self._error is not None:
                raise self._error
        self._committed += 1

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all frames are in the ring, or were refused. Returns false after `timeout` seconds."""
        self._check_open()
        if timeout is not None:
            _arguments.seconds("timeout", timeout)
        return self._wait(0, timeout)

    def close(self) -> None:
        """Wait until all frames are in the ring, and end the production.

        If the run ends meanwhile, the frames that it has not accepted are dropped.
        """
        if self._connection.fileno() >= 0:
            try:
                if self._error is None:
                    self.flush()
                    # Another production can begin when this returns.
                    self._connection.end(1.0)
            except RevokedError:
                if not self._has_ended:
                    raise
            finally:
                self._connection.close()

    def _check_open(self) -> None:
        if self._connection.fileno() < 0:
            raise ValueError(
                f"the production of source {self.name} was closed; write inside `with daq.produce(…)`, or before `close`"
            )

    def _wait(self, pending: int, timeout: float | None) -> bool:
        """Wait until at most `pending` frames are on their way."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            # Read what has arrived, because the daemon must not wait for this process.
            while self._receive(0.0):
                pass
            if self._error is not None:
                raise self._error
            if self._committed - self._done <= pending:
                return True
            limit = 0.1 if end is None else min(0.1, end - time.monotonic())
            if limit <= 0:
                return False
            self._receive(limit)

    def _receive(self, timeout: float) -> bool:
        """Handle the next packet of the daemon. Returns whether one arrived within `timeout` seconds."""
        if self._error is not None:
            return False
        packet = self._connection.receive_bytes(timeout)
        if packet is None:
            return False
        if len(packet) == _ACKNOWLEDGEMENT.size:
            self._done, self._refused = _ACKNOWLEDGEMENT.unpack(packet)
            return True
        about = json.loads(packet) if packet else {}
        self._has_ended = "revoked" not in about
        reason = about.get("revoked") or ("the run has ended" if "ended" in about else "the daemon closed the connection")
        self._error = RevokedError(f"source {self.name} accepts no more frames: {reason}")
        return False

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._connection.close()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()

    def __repr__(self) -> str:
        return f"<Producer {self.name}: {self.layout.dtype} {self.layout.shape(self._frame_bytes)}, {self._committed} frames>"


def _memory_file(size: int) -> int:
    """Return a file in memory whose size cannot change."""
    fd = os.memfd_create("daq-inbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def _timestamp(like: Frame | None, time: Time | None, clock: str) -> tuple[int, str]:
    """Return the nanoseconds and the clock of a frame."""
    if like is not None and time is not None:
        raise ValueError("give either `like` or `time`, not both")
    if clock not in CLOCKS:
        raise ValueError(f"`clock` must be one of {', '.join(CLOCKS)}, not {clock!r}")
    if like is not None:
        if not isinstance(like, Frame):
            raise TypeError(
                f"`like` must be a frame, whose time is used, not a {type(like).__name__}; for a time, write `time=`"
            )
        return like.time_ns, like.clock
    if time is None:
        return 0, CLOCKS[0]
    ns = _arguments.nanoseconds("time", time)
    if ns < 0:
        raise ValueError(f"`time` must not be before 1970, not {time}")
    return ns, clock


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)
