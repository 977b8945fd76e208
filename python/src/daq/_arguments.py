"""Checks of arguments. Each error names the argument, what it must be, and its value."""

from __future__ import annotations

import datetime
import math
import operator
import os
from pathlib import Path
from typing import Union

import numpy as np

#: A point in time.
Time = Union[np.datetime64, datetime.datetime]


def text(name: str, value: object) -> str:
    """Return `value`. Raises TypeError unless it is a text."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a text, not {value!r}")
    return value


def path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return `value` as a path. Raises TypeError unless it is a text or a path."""
    try:
        return Path(value)
    except TypeError:
        raise TypeError(f"`{name}` must be a path, not {value!r}") from None


def flag(name: str, value: object) -> bool:
    """Return `value`. Raises TypeError unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, not {value!r}")
    return bool(value)


def integer(name: str, value: object) -> int:
    """Return `value` as an integer. Raises TypeError unless it is one."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(f"`{name}` must be an integer, not {value!r}")


def seconds(name: str, value: object) -> float:
    """Return a time in seconds. Raises TypeError unless it is a number, and ValueError if it is NaN."""
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{name}` must be a number of seconds, not {value!r}")
    if math.isnan(value):
        raise ValueError(f"`{name}` must be a number of seconds, not NaN")
    return float(value)


def nanoseconds(name: str, value: Time) -> int:
    """Return a time in nanoseconds since 1970. A datetime without a time zone is local time.

    Raises TypeError unless it is a time, and ValueError if it is NaT or cannot be expressed in nanoseconds.
    """
    if isinstance(value, datetime.datetime):
        # NumPy has no time zones.
        value = np.datetime64(value.astimezone(datetime.timezone.utc).replace(tzinfo=None), "us")
    if not isinstance(value, np.datetime64):
        raise TypeError(f"`{name}` must be a numpy.datetime64 or a datetime, not {value!r}")
    if np.isnat(value):
        raise ValueError(f"`{name}` must be a time, not NaT")
    if not 1678 <= int(value.astype("datetime64[Y]").astype(np.int64)) + 1970 <= 2261:
        raise ValueError(f"`{name}` must be in the years 1678 to 2261, not {value}")
    return int(value.astype("datetime64[ns]").astype(np.int64))
