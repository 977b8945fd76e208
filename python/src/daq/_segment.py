"""One segment of a recording: a SigMF file or a Zarr store, with what is known about each frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._samples import Array, Layout

#: Number of frames whose number is not listed in the files.
UNKNOWN_NUMBER = np.iinfo(np.uint64).max


#: Attribute with the number of the first segment of the same run.
FIRST_SEGMENT = "daq:first_segment"

#: Cause of a gap between two runs of daq.
NEW_RUN = "new_run"


@dataclass(frozen=True)
class Gap:
    """Whole frames that are not in a recording."""

    #: Index of the first frame after the gap.
    index: int
    #: Number of missing frames; None between two runs, whose frame numbers do not continue each other.
    frames: int | None
    #: Why they are missing, if it is known, such as `disk_full`. `new_run`: another run of daq wrote the frames after the gap.
    cause: str | None


@dataclass(frozen=True)
class Span:
    """A range of samples that are filled because they did not arrive."""

    #: Index of the frame.
    index: int
    #: First sample in the frame, and number of samples. A sample contains one point of every channel; in planar frames, it is
    #: one number of one channel.
    start: int
    samples: int
    #: Why they are missing, if the sink knows it, such as `truncated`.
    cause: str | None


@dataclass
class Segment:
    """The frames of one file or store. All arrays have one row per frame."""

    path: Path
    layout: Layout
    #: The attributes of the file: `global` of SigMF, the attributes of a Zarr group.
    attributes: Mapping[str, Any]
    #: `complete`, `writing` or `recovered`.
    state: str
    #: Payload in pieces, each with the rows of some frames.
    pieces: list[Array]
    number: npt.NDArray[np.uint64]
    epoch: npt.NDArray[np.uint32]
    time_ns: npt.NDArray[np.uint64]
    clock: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint32]
    #: Valid bytes of each frame.
    length: npt.NDArray[np.uint64]
    spans: list[Span]
    gaps: list[Gap]
    present: npt.NDArray[np.bool_] | None = None
    kept: dict[str, np.ma.MaskedArray[Any, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.number)

    def continues(self, last: Segment) -> bool:
        """Return whether the same run of daq wrote this segment after `last`.

        All SigMF files of a run contain the number of its first segment. There is one Zarr store per run.
        """
        first = self.attributes.get(FIRST_SEGMENT)
        return first is not None and first == last.attributes.get(FIRST_SEGMENT)
