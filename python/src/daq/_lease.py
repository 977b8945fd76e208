"""Which frames of an attached ring are in use, and the counts that the daemon gets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Callable

READ, DISCARDED = "read", "discarded"


@dataclass
class _Run:
    """Consecutive frames that end in the same way."""

    end: int
    count: int
    use: str
    #: Whether the frames are no longer used. A position of a GPU that must be reached first has the method `is_reached`.
    done: Any


class Lease:
    """The right to read one frame. It ends when no object refers to it any more."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        #: CUDA streams that read the frame.
        self.streams: set[int] = set()

    def __del__(self) -> None:
        self._end()


class Counts:
    """The counts of one client, as in "Report progress" of the attach protocol.

    Frames retire in their order: with a guarantee, the producer may overwrite frames before `retired`.
    """

    def __init__(self, first: int) -> None:
        #: The next frame that was not started.
        self.position = first
        #: Frames that were finished, and were still intact then.
        self.read = 0
        #: Frames that were overwritten before they were read.
        self.overrun = 0
        #: Frames that were skipped on purpose, or that changed while they were read.
        self.discarded = 0
        #: Frames before this one are no longer used.
        self.retired = first
        self._runs: deque[_Run] = deque()

    def skip(self, position: int) -> None:
        """Skip the frames before `position` on purpose."""
        count = position - self.position
        if count == 0:
            return
        self.position = position
        last = self._runs[-1] if self._runs else None
        if last is not None and last.use == DISCARDED and last.done is True and last.end == position - count:
            last.end, last.count = position, last.count + count
        else:
            self._runs.append(_Run(position, count, DISCARDED, True))

    def overtake(self, position: int) -> None:
        """Count the frames before `position` as overrun."""
        self.overrun += position - self.position
        self.position = position
        self._runs.append(_Run(position, 0, DISCARDED, True))

    def begin(self) -> _Run:
        """Begin the next frame. The caller sets `use` and `done` when it has finished."""
        self.position += 1
        run = _Run(self.position, 1, READ, False)
        self._runs.append(run)
        return run

    def retire(self) -> bool:
        """Count the frames that are done, up to the first one in use. Returns whether a frame retired."""
        before = self.retired
        while self._runs and (self._runs[0].done is True or (self._runs[0].done and self._runs[0].done.is_reached())):
            run = self._runs.popleft()
            self.retired = run.end
            if run.use == READ:
                self.read += run.count
            else:
                self.discarded += run.count
        return self.retired > before

    @property
    def in_use(self) -> int:
        """Number of frames that were begun and have not retired."""
        return sum(run.count for run in self._runs)

    def progress(self) -> dict[str, dict[str, int]]:
        """Return the packet for the daemon."""
        names = ("position", "read", "overrun", "discarded", "retired")
        return {"progress": {name: getattr(self, name) for name in names}}
