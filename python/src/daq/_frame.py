"""What frames of rings and of recordings have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from ._flags import Flags, to_datetime
from ._samples import Array, Layout


class Frame(ABC):
    """One frame of a ring or of a recording.

    `numpy.asarray(frame)` returns its samples: `[point, channel]`, or `[channel, point]` if the frame is planar.
    """

    #: Type, shape, axis and rates of the frame.
    layout: Layout

    @property
    @abstractmethod
    def number(self) -> int:
        """Number of the frame in its epoch, as counted by its producer."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Number of times that the producer restarted its frame numbers."""

    @property
    @abstractmethod
    def time_ns(self) -> int:
        """Nanoseconds of the frame's clock; 0 if the clock is `none`."""

    @property
    @abstractmethod
    def clock(self) -> str:
        """Clock of the time. Only `host`, `kernel`, `sensor-utc` and `recorded-utc` are UTC."""

    @property
    @abstractmethod
    def flags(self) -> Flags:
        """Flags of the frame."""

    @property
    @abstractmethod
    def missing(self) -> int:
        """Number of samples that did not arrive and are filled.

        A sample contains one point of every channel; in planar frames, it is one point of one channel.
        """

    @property
    @abstractmethod
    def present(self) -> npt.NDArray[np.bool_] | None:
        """Which packets arrived; None if the frame does not consist of packets."""

    @property
    @abstractmethod
    def kept(self) -> dict[str, int]:
        """The kept fields that the frame has, by name."""

    @property
    @abstractmethod
    def valid(self) -> bool:
        """Whether everything that was read from the frame so far is its payload, and not that of a later frame."""

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array: ...

    @property
    def time(self) -> np.datetime64:
        """Time of the first sample in nanoseconds; NaT if it is unknown. See `clock`."""
        return to_datetime(self.time_ns, self.clock)

    def __getitem__(self, name: str) -> int:
        """Return a kept field. Raises KeyError if the frame does not have it."""
        kept = self.kept
        if name not in kept:
            raise KeyError(f"frame {self.number} has no kept field {name!r}; it has {', '.join(kept) or 'none'}")
        return kept[name]

    def values(self) -> Array:
        """Return the numbers of the frame in a type that NumPy calculates with; see `Layout.values`."""
        return self.layout.values(np.asarray(self))

    def __repr__(self) -> str:
        lost = f", {self.missing} samples missing" if self.missing else ""
        return f"<{type(self).__name__} {self.number} of epoch {self.epoch}, {self.time}{lost}>"
