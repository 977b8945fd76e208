"""Flags and clocks of a frame."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt


class Flags(enum.IntFlag):
    """Flags of a frame."""

    #: At least one packet is missing; the bytes of missing packets contain the ring's fill pattern.
    INCOMPLETE = 1
    #: The frame is the first of an epoch, so it does not continue the frames before it.
    EPOCH = 2
    #: The stream, or one part of it, ended or began inside this frame.
    TRUNCATED = 4
    #: The frame contains payload whose check failed at the source.
    SUSPECT = 8


#: Names of the clocks, by their numbers in rings and Zarr stores.
CLOCKS = ("none", "host", "kernel", "sensor", "simulated", "recorded", "sensor-utc", "hardware", "recorded-utc")

#: Clocks that count from 1970-01-01T00:00:00Z.
UTC_CLOCKS = frozenset({"host", "kernel", "sensor-utc", "recorded-utc"})

_NOT_A_TIME = np.iinfo(np.int64).min


def clock_name(number: int) -> str:
    """Return the name of a clock; `none` for unknown numbers."""
    return CLOCKS[number] if number < len(CLOCKS) else CLOCKS[0]


def to_datetime(ns: int, clock: str) -> np.datetime64:
    """Return the time of a frame; NaT if it has none."""
    if clock == "none" or ns > np.iinfo(np.int64).max:
        return np.datetime64("NaT", "ns")
    return np.datetime64(ns, "ns")


def to_datetimes(ns: npt.NDArray[Any], known: npt.NDArray[np.bool_]) -> npt.NDArray[np.datetime64]:
    """Return the times of frames; NaT where `known` is false."""
    return np.where(known, ns.astype(np.int64), _NOT_A_TIME).astype("datetime64[ns]")
