"""Reads stores of the sink `zarr`: Zarr format 3 without compression.

The chunks are memory-mapped, and no Zarr library is needed. Other libraries read the same stores. The format is described in
"File formats" of the documentation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import RecordingError
from ._packets import PacketSizes
from ._samples import Array, Layout
from ._segment import Gap, Segment, Span

SUFFIX = ".zarr"
_JSON = Mapping[str, Any]


def read_store(path: Path) -> Segment:
    """Read a store. The chunks of frames are memory-mapped.

    Raises RecordingError if a file is missing or was not written by daq.
    """
    try:
        return _read(path)
    except OSError as error:
        raise RecordingError(f"cannot read {error.filename or path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordingError(f"{path} is not a store of daq: {type(error).__name__}: {error}") from error


class _Column:
    """One array of a store."""

    def __init__(self, store: Path, name: str, rows: int | None = None) -> None:
        self.path = store / name
        meta = json.loads((self.path / "zarr.json").read_text(encoding="utf-8"))
        codecs = [codec["name"] for codec in meta["codecs"]]
        if codecs != ["bytes"]:
            raise RecordingError(f"{self.path} is compressed ({', '.join(codecs)}); open it with the package zarr")
        endian = meta["codecs"][0].get("configuration", {}).get("endian")
        self.attributes: _JSON = meta.get("attributes", {})
        shape = [int(size) for size in meta["shape"]]
        self.rows = shape[0] if rows is None else rows
        self.shape = tuple(shape[1:])
        self.names = [str(name) for name in meta.get("dimension_names", ())]
        self.dtype = np.dtype(meta["data_type"]).newbyteorder(">" if endian == "big" else "<")
        self.chunk_rows = int(meta["chunk_grid"]["configuration"]["chunk_shape"][0])

    def pieces(self) -> Iterator[Array]:
        """Return the rows of each chunk."""
        for chunk in range(-(-self.rows // self.chunk_rows)):
            rows = min(self.chunk_rows, self.rows - chunk * self.chunk_rows)
            path = self.path / f"c.{chunk}{'.0' * len(self.shape)}"
            yield np.memmap(path, self.dtype, "r", shape=(self.chunk_rows, *self.shape))[:rows]

    def read(self) -> Array:
        """Return all rows in memory."""
        pieces = list(self.pieces())
        return np.concatenate(pieces) if pieces else np.empty((0, *self.shape), self.dtype)


def _read(path: Path) -> Segment:
    attributes = json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]
    # A store that is being written: the array of frames is updated last, and has the number of rows of all arrays.
    frames = _Column(path, "frames")
    rows = frames.rows

    def column(name: str) -> Array:
        return _Column(path, name, rows).read()

    layout = _layout(frames)
    number, epoch = column("sequence"), column("epoch")
    present = _Column(path, "present", rows) if (path / "present").is_dir() else None
    segment = Segment(
        path=path,
        layout=layout,
        attributes=attributes,
        state=str(attributes.get("state", "writing")),
        pieces=list(frames.pieces()),
        number=number,
        epoch=epoch,
        time_ns=column("timestamp_ns"),
        clock=column("clock"),
        flags=column("flags"),
        length=column("length"),
        spans=[],
        gaps=_gaps(number, epoch),
        present=present.read() if present else None,
    )
    if (path / "kept").is_dir():
        has, about = column("kept"), _Column(path, "kept").attributes
        for bit, name in zip(about["flag_masks"], about["flag_meanings"].split()):
            segment.kept[name] = np.ma.MaskedArray(column(name), mask=(has & int(bit)) == 0)
    if present and segment.present is not None:
        segment.spans = list(_spans(segment, present.attributes, path))
    return segment


def _layout(frames: _Column) -> Layout:
    about = frames.attributes
    order = str(about.get("order", "interleaved"))
    axis = {key.removeprefix("axis_"): value for key, value in about.items() if key.startswith("axis_")}
    if about.get("axis") == "pixels":
        points = axis["width"] * axis["height"] * max(1, len(axis.get("module_x", ())))
        pairs = 2 if frames.names[-1] == "part" else 1
        channels = math.prod(frames.shape) // (points * pairs)
    else:
        first, second = frames.shape[:2]
        channels, points = (first, second) if order == "planar" else (second, first)
    return Layout(
        str(about["type"]),
        bool(about["complex"]),
        channels,
        points,
        order,
        {"kind": about["axis"], **axis} if "axis" in about else {},
        about.get("sample_rate"),
        about.get("frame_rate"),
    )


def _gaps(number: Array, epoch: Array) -> list[Gap]:
    """Return the gaps where numbers of the same epoch are not consecutive."""
    after = np.flatnonzero((epoch[1:] == epoch[:-1]) & (number[1:] > number[:-1] + np.uint64(1))) + 1
    return [Gap(int(i), int(number[i] - number[i - 1]) - 1, None) for i in after]


def _spans(segment: Segment, sizes: _JSON, path: Path) -> Iterator[Span]:
    """Return the ranges of missing samples of each frame."""
    present = segment.present
    if present is None:
        return
    incomplete = np.flatnonzero(~present.all(axis=1))
    detected = None
    if (path / "first_bytes").is_dir():
        names = ("packets_per_frame", "first_bytes", "packet_bytes")
        detected = [_Column(path, name, len(present)).read() for name in names]
    elif "packet_bytes" not in sizes:
        return
    for i in incomplete.tolist():
        if detected is not None:
            packets, first, rest = (int(column[i]) for column in detected)
            packet_sizes = PacketSizes(packets, first, rest)
        else:
            packets, first, rest = present.shape[1], int(sizes["first_bytes"]), int(sizes["packet_bytes"])
            packet_sizes = PacketSizes(packets, first, rest, int(sizes.get("parts", 1)))
        for start, samples in packet_sizes.missing(present[i], int(segment.length[i]), segment.layout.sample_bits):
            yield Span(i, start, samples, None)
