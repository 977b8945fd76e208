"""Recordings of the sinks `file` and `zarr` as arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _arguments, _sigmf, _zarr
from ._errors import RecordingError
from ._flags import CLOCKS, Flags, to_datetimes
from ._frame import Frame
from ._rows import Rows
from ._samples import Array, Layout
from ._segment import NEW_RUN, Gap, Segment, Span

if TYPE_CHECKING:
    import xarray

_PARTIAL = ".sigmf-data.partial"
_SEGMENT = re.compile(r"(?P<name>.+)-(?P<number>\d{6,})(?P<kind>\.sigmf-meta|\.zarr)")


class RecordedFrame(Frame):
    """One frame of a recording."""

    def __init__(self, recording: Recording, index: int) -> None:
        self._recording = recording
        self.layout = recording.layout
        #: Index of the frame in the recording.
        self.index = index

    @property
    def number(self) -> int:
        return int(self._recording.number[self.index])

    @property
    def epoch(self) -> int:
        return int(self._recording.epoch[self.index])

    @property
    def time_ns(self) -> int:
        return int(self._recording.time_ns[self.index])

    @property
    def clock(self) -> str:
        return str(self._recording.clock[self.index])

    @property
    def flags(self) -> Flags:
        return Flags(int(self._recording.flags[self.index]))

    @property
    def missing(self) -> int:
        return int(self._recording.missing[self.index])

    @property
    def present(self) -> npt.NDArray[np.bool_] | None:
        present = self._recording.present
        return None if present is None else present[self.index]

    @property
    def kept(self) -> dict[str, int]:
        values = {name: column[self.index] for name, column in self._recording.kept.items()}
        return {name: int(value) for name, value in values.items() if value is not np.ma.masked}

    @property
    def valid(self) -> bool:
        """Always true, because a recorded frame does not change."""
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        row = self._recording.frames[self.index]
        raw = np.ascontiguousarray(row).reshape(-1).view(np.uint8)[: int(self._recording.length[self.index])]
        array = self.layout.array(raw)
        return np.array(array, dtype=dtype) if copy else np.asarray(array, dtype=dtype)


class Recording:
    """The output of a sink `file` or `zarr` as arrays with one row per frame.

    `path` is the directory of the sink, one `.sigmf-meta` file, or one `.zarr` store. A directory may contain the files of
    several sinks; `name` then selects one of them. All segments become one recording. Payload is memory-mapped and read only
    when it is used. Files of a run in progress can be opened: SigMF shows complete segments, Zarr all committed frames.
    The frames of several runs follow each other; `run` and `gaps` show where another run begins.

    Raises RecordingError if there is no such recording.
    """

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        self.path = _arguments.path("path", path)
        if name is not None:
            _arguments.text("name", name)
        paths = _find(self.path, name)
        self._is_growing = not _is_file(self.path) and _has_later_part(paths[-1])
        self.segments: list[Segment] = [
            _sigmf.read_segment(path) if path.name.endswith(_sigmf.META) else _zarr.read_store(path) for path in paths
        ]
        first = self.segments[0]
        for segment in self.segments:
            if segment.layout != first.layout:
                raise RecordingError(
                    f"{segment.path.name} and {first.path.name} have different frames: "
                    f"{_difference(segment.layout, first.layout)}; open them one by one"
                )
        #: Type, shape, axis and rates of the frames.
        self.layout: Layout = first.layout
        #: The attributes of the first file, such as `core:description`.
        self.attributes: Mapping[str, Any] = first.attributes
        self._offsets = np.cumsum([0] + [len(segment) for segment in self.segments]).tolist()
        pieces = [piece for segment in self.segments for piece in segment.pieces]
        #: Payload: `[frame, point, channel]`, or `[frame, channel, point]` if planar. Shorter frames end with zeros.
        self.frames = Rows(pieces, self.layout.shape(), self.layout.dtype)
        #: Number of each frame in its epoch.
        self.number: npt.NDArray[np.uint64] = self._join("number")
        #: Number of times that the frame numbers restarted before each frame.
        self.epoch: npt.NDArray[np.uint32] = self._join("epoch")
        #: Nanoseconds of the clock of each frame; 0 where `clock` is `none`.
        self.time_ns: npt.NDArray[np.uint64] = self._join("time_ns")
        #: Number of the run of daq that wrote each frame, from 0.
        self.run: npt.NDArray[np.uint32] = self._runs()
        #: Flags of each frame: bits of `Flags`.
        self.flags: npt.NDArray[np.uint32] = self._join("flags")
        # SigMF files have no flag for the first frame of an epoch, and the reader of a segment does not see those before it.
        begins = (np.diff(self.run) != 0) | (np.diff(self.epoch) != 0)
        self.flags[1:][begins] |= np.uint32(Flags.EPOCH)
        if first.attributes.get("daq:segment") == 0:
            self.flags[:1] |= np.uint32(Flags.EPOCH)
        #: Valid bytes of each frame.
        self.length: npt.NDArray[np.uint64] = self._join("length")
        self._clock: npt.NDArray[np.uint8] = self._join("clock")

    def _join(self, name: str) -> Array:
        return np.concatenate([getattr(segment, name) for segment in self.segments])

    def _runs(self) -> npt.NDArray[np.uint32]:
        runs = [0]
        for last, segment in zip(self.segments, self.segments[1:]):
            runs.append(runs[-1] + (not segment.continues(last)))
        return np.repeat(np.array(runs, np.uint32), [len(segment) for segment in self.segments])

    @staticmethod
    def names(path: str | os.PathLike[str]) -> list[str]:
        """Return the names of the recordings in a directory, which are the values for `name`."""
        return sorted({match["name"] for match in map(_SEGMENT.fullmatch, _entries(_arguments.path("path", path))) if match})

    @property
    def state(self) -> str:
        """`complete`, `writing` (a run writes more frames, or was killed) or `recovered` (after a killed run)."""
        return "writing" if self._is_growing else self.segments[-1].state

    @cached_property
    def time(self) -> npt.NDArray[np.datetime64]:
        """Time of the first sample of each frame; NaT where it is unknown. See `clock`."""
        return to_datetimes(self.time_ns, self._clock != 0)

    @cached_property
    def clock(self) -> npt.NDArray[np.str_]:
        """Name of the clock of each time. Only `host`, `kernel`, `sensor-utc` and `recorded-utc` are UTC."""
        return np.array(CLOCKS)[np.minimum(self._join("clock"), len(CLOCKS) - 1)]

    @cached_property
    def gaps(self) -> list[Gap]:
        """Whole frames that are not in the recording, and the gaps between runs. The missing time of a gap is

            recording.time[gap.index] - recording.time[gap.index - 1]

        minus the duration of a frame, if both times have the same clock.
        """
        gaps = [
            replace(gap, index=gap.index + offset)
            for segment, offset in zip(self.segments, self._offsets)
            for gap in segment.gaps
        ]
        gaps += [Gap(int(index), None, NEW_RUN) for index in np.flatnonzero(np.diff(self.run)) + 1]
        return sorted(gaps, key=lambda gap: gap.index)

    @cached_property
    def spans(self) -> list[Span]:
        """Ranges of samples that did not arrive and are filled."""
        return [
            replace(span, index=span.index + offset)
            for segment, offset in zip(self.segments, self._offsets)
            for span in segment.spans
        ]

    @cached_property
    def missing(self) -> npt.NDArray[np.int64]:
        """Number of samples of each frame that did not arrive and are filled."""
        missing = np.zeros(len(self), np.int64)
        for span in self.spans:
            missing[span.index] += span.samples
        return missing

    @cached_property
    def present(self) -> npt.NDArray[np.bool_] | None:
        """Which packets of each frame arrived: `[frame, packet]`; None if frames do not consist of packets.

        SigMF files do not contain the sizes of packets. There, the columns are equal parts of a frame, as many as a frame has
        packets, and the value is whether the whole part arrived.
        """
        parts = [segment.present for segment in self.segments]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts) or len({part.shape[1] for part in known}) > 1:
            return None
        return np.concatenate(known)

    @cached_property
    def kept(self) -> dict[str, np.ma.MaskedArray[Any, Any]]:
        """The kept fields by name, one value per frame; masked where a frame does not have the field."""
        names = dict.fromkeys(name for segment in self.segments for name in segment.kept)
        # NumPy declares no types for these functions.
        none: Any = np.ma.masked_all
        concatenate: Any = np.ma.concatenate
        return {
            name: concatenate([s.kept[name] if name in s.kept else none(len(s), np.uint64) for s in self.segments])
            for name in names
        }

    @cached_property
    def samples(self) -> Rows:
        """Samples over time: `[point, channel]`, with the frames one after the other. Gaps are not filled.

        Raises RecordingError if frames are planar, are not samples over time, or differ in size.
        """
        layout = self.layout
        if layout.order == "planar" or layout.axis.get("kind", "time") != "time":
            raise RecordingError("the frames are not interleaved samples over time; use `frames`")
        if len(self) and np.any(self.length != self.length[0]):
            raise RecordingError("frames differ in size; use the frames one by one")
        shape = layout.shape()[1:]
        return Rows([piece.reshape(-1, *shape) for piece in self.frames.pieces], shape, layout.dtype)

    def values(self, rows: Any = slice(None)) -> Array:
        """Return the numbers of `frames[rows]` in a type that NumPy calculates with; see `Layout.values`."""
        return self.layout.values(self.frames[rows])

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def __getitem__(self, index: int) -> RecordedFrame:
        """Return one frame with its metadata."""
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"a frame is selected by an integer, not {index!r}; `frames[…]` and `values(…)` select several")
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"frame {index} of {len(self)} frames")
        return RecordedFrame(self, index % len(self))

    def __iter__(self) -> Iterator[RecordedFrame]:
        return (RecordedFrame(self, index) for index in range(len(self)))

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.frames.shape))
        runs = len(np.unique(self.run))
        several = f", {runs} runs" if runs > 1 else ""
        return f"<Recording {self.path}: [{shape}] {self.layout.dtype}{several}, {len(self.gaps)} gaps, {self.state}>"

    def to_xarray(self) -> xarray.Dataset:
        """Return the recording as a dataset with the coordinates `time`, `run`, `epoch`, `number` and, if known, `frequency`.

        The variable `frames` is read lazily if the recording is one file, or if dask is installed. Float16 becomes float32,
        because xarray sums float16 numbers without more digits. Needs xarray.
        """
        from ._xarray import dataset  # noqa: PLC0415 - xarray is optional

        return dataset(self)


def _difference(layout: Layout, other: Layout) -> str:
    """Return a property of two layouts that differs, and its values."""
    if layout.shape() != other.shape():
        return f"the shapes are {layout.shape()} and {other.shape()}"
    names = [field.name for field in fields(layout)]
    name = next(name for name in names if getattr(layout, name) != getattr(other, name))
    return f"`{name}` is {getattr(layout, name)!r} and {getattr(other, name)!r}"


def _is_file(path: Path) -> bool:
    """Return whether this is the path of one segment, and not of a directory of segments."""
    return path.name.endswith((_sigmf.META, _zarr.SUFFIX, ".sigmf-data", _PARTIAL))


def _has_later_part(path: Path) -> bool:
    """Return whether a SigMF file after this one is being written."""
    match = _SEGMENT.fullmatch(path.name)
    if match is None or match["kind"] != _sigmf.META:
        return False
    later = re.compile(re.escape(match["name"]) + rf"-(\d{{6,}}){re.escape(_PARTIAL)}")
    found = filter(None, map(later.fullmatch, _entries(path.parent)))
    return any(int(part[1]) > int(match["number"]) for part in found)


def _entries(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error


def _find(path: Path, name: str | None) -> list[Path]:
    """Return the files and stores of one recording in ascending order."""
    if path.name.endswith(_PARTIAL):
        path = path.with_suffix("").with_suffix(_sigmf.META)
    elif path.name.endswith(".sigmf-data"):
        path = path.with_suffix(_sigmf.META)
    if _is_file(path):
        if not path.exists() and path.with_suffix(_PARTIAL).exists():
            raise RecordingError(
                f"{path.with_suffix(_PARTIAL)} is being written, or its run was killed; a SigMF file can be opened when it is "
                "complete"
            )
        return [path]
    found: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for match in filter(None, map(_SEGMENT.fullmatch, _entries(path))):
        if name in (None, match["name"]):
            key = (match["name"], match["kind"])
            found.setdefault(key, []).append((int(match["number"]), path / match[0]))
    if not found:
        wanted = re.compile((re.escape(name) if name else ".+") + r"-\d{6,}" + re.escape(_PARTIAL))
        partial = [entry for entry in _entries(path) if wanted.fullmatch(entry)]
        if partial:
            raise RecordingError(
                f"{path / partial[0]} is being written, or its run was killed; a SigMF file can be opened when it is complete: "
                "wait for the end of the segment or of the run, or reduce `segment` of the sink"
            )
        what = f"no recording named {name!r}" if name else "no complete segment of a recording"
        raise RecordingError(f"{path} contains {what}; names: {', '.join(Recording.names(path)) or 'none'}")
    if len(found) > 1:
        names = ", ".join(sorted(f"{name} ({kind})" for name, kind in found))
        raise RecordingError(f"{path} contains several recordings: {names}; give a `name`, or the path of one file")
    return [path for _, path in sorted(next(iter(found.values())))]
