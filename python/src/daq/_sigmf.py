"""Reads segments of the sink `file`: SigMF with the extension `daq`.

The format is described in "File formats" of the documentation.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import RecordingError
from ._flags import CLOCKS, Flags
from ._samples import Array, Layout
from ._segment import UNKNOWN_NUMBER, Gap, Segment, Span

META = ".sigmf-meta"
_NUMBERS = {
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "u16": "uint16",
    "i32": "int32",
    "u32": "uint32",
    "f32": "float32",
    "f64": "float64",
}
_JSON = Mapping[str, Any]


def read_segment(path: Path) -> Segment:
    """Read the segment of a `.sigmf-meta` file. The payload is memory-mapped.

    Raises RecordingError if a file is missing or was not written by daq.
    """
    try:
        meta = json.loads(path.read_text(encoding="utf-8-sig"))
        return _Reader(path, meta).read()
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{path} is not a recording of daq: {type(error).__name__}: {error}") from error


def _layout(info: _JSON) -> Layout:
    kind, _, order = str(info["core:datatype"]).partition("_")
    number, is_complex = _NUMBERS[kind[1:]] + ("be" if order == "be" else ""), kind[0] == "c"
    rate = info.get("core:sample_rate")
    if "daq:channels" in info:
        return Layout(
            number,
            is_complex,
            channels=info["daq:channels"],
            points=info["daq:points"],
            order=info["daq:order"],
            axis=info.get("daq:axis", {}),
            sample_rate=info.get("daq:axis", {}).get("rate"),
            frame_rate=info.get("daq:frame_rate"),
        )
    channels = int(info.get("core:num_channels", 1))
    layout = Layout(number, is_complex, channels=channels)
    points = int(info["daq:frame_bytes"]) * 8 // layout.point_bits
    axis = {"kind": "time", **({"rate": rate} if rate else {})}
    frame_rate = rate / points if rate and points else None
    return Layout(number, is_complex, channels, points, axis=axis, sample_rate=rate, frame_rate=frame_rate)


class _Reader:
    """Reads one segment. A sample is a SigMF sample; indices of samples count from the start of the file."""

    def __init__(self, path: Path, meta: _JSON) -> None:
        self.path = path
        self.info: _JSON = meta["global"]
        if "daq:frame_bytes" not in self.info:
            raise RecordingError(f"{path} was not written by daq, so its frames are unknown; use the package sigmf")
        self.captures: list[_JSON] = meta["captures"]
        self.notes: list[_JSON] = meta["annotations"]
        self.layout = _layout(self.info)
        self.frame_bytes = int(self.info["daq:frame_bytes"])
        number_bytes = self.layout.number_bits // 8
        self.sample_bytes = number_bytes * int(self.info.get("core:num_channels", 1))
        # The colours of a pixel are several samples of SigMF, but one sample of its frame.
        self.parts_of_sample = max(self.layout.sample_bits // 8 // self.sample_bytes, 1)

    def read(self) -> Segment:
        data = self.path.with_suffix(".sigmf-data")
        size = int(self.info["daq:bytes"])
        raw = np.memmap(data, np.uint8, "r", shape=(size,)) if size else np.empty(0, np.uint8)
        frames, ends = self._frames(size)
        starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
        self._widen(int(np.max(ends - starts, initial=0)) * self.sample_bytes)
        flags = frames["flags"]
        spans = list(self._spans(starts, ends))
        for span in spans:
            flags[span.index] |= Flags.INCOMPLETE | (Flags.TRUNCATED if span.cause == "truncated" else 0)
        labels = {"suspect": Flags.SUSPECT, "incomplete": Flags.INCOMPLETE}
        listed = sum(span.samples for span in spans if span.cause != "truncated")
        if self.info.get("daq:missing_samples", 0) > listed * self.parts_of_sample:
            # Any frame in this range may have missing samples.
            labels["unlisted"] = Flags.INCOMPLETE
            warnings.warn(
                f"{self.path.name} has too many missing packets to list, so `missing` lacks some of them, and all frames of that part "
                "of the file are marked as incomplete",
                stacklevel=5,
            )
        for label, flag in labels.items():
            for note in self._labelled(label):
                flags[_overlap(note, starts, ends)] |= np.uint32(flag)
        return Segment(
            path=self.path,
            layout=self.layout,
            attributes=self.info,
            state="complete",
            pieces=self._pieces(raw, starts, ends),
            spans=spans,
            gaps=self._gaps(starts),
            length=((ends - starts) * self.sample_bytes).astype(np.uint64),
            present=self._present(spans, len(ends)),
            kept=self._kept(starts, ends),
            **frames,
        )

    def _widen(self, largest: int) -> None:
        """Use the size of the largest frame. Old files state the size of the first frame also if frames differ in size."""
        if largest > self.frame_bytes:
            self.frame_bytes = largest
            self.layout = replace(self.layout, points=largest * 8 // self.layout.point_bits)

    def _frames(self, size: int) -> tuple[dict[str, Array], Array]:
        """Return one row per frame, and the sample after each frame."""
        whole = self.frame_bytes // self.sample_bytes
        total = size // self.sample_bytes
        captures = [capture for capture in self.captures if capture.get("daq:frames")]
        starts = [int(capture["core:sample_start"]) for capture in captures]
        types = {"number": np.uint64, "epoch": np.uint32, "time_ns": np.uint64, "clock": np.uint8, "flags": np.uint32}
        parts: dict[str, list[Array]] = {name: [] for name in types}
        ends: list[Array] = []
        epoch = None
        for i, capture in enumerate(captures):
            frames = np.arange(int(capture["daq:frames"]))
            time_ns, clock = self._times(capture, frames)
            flags = np.zeros(len(frames), np.uint32)
            if epoch not in (None, capture["daq:epoch"]):
                flags[0] = Flags.EPOCH
            epoch = int(capture["daq:epoch"])
            parts["number"].append(frames.astype(np.uint64) + np.uint64(capture["daq:sequence"]))
            parts["epoch"].append(np.full(len(frames), epoch, np.uint32))
            parts["time_ns"].append(time_ns)
            parts["clock"].append(clock)
            parts["flags"].append(flags)
            ends.append(starts[i] + (frames + 1) * whole)
            if i + 1 < len(captures):
                # Only the last frame of a capture can have another size.
                ends[-1][-1] = starts[i + 1]
        if ends:
            rest = total - int(ends[-1][-1])
            unlisted = rest // whole if any(True for _ in self._labelled("unlisted")) else 0
            if unlisted > 0:
                warnings.warn(
                    f"{self.path.name} has too many gaps to list, so its last {unlisted} frames have no exact numbers",
                    stacklevel=6,
                )
                ends.append(ends[-1][-1] + (np.arange(unlisted) + 1) * whole)
                for name, arrays in parts.items():
                    value = {"number": UNKNOWN_NUMBER, "epoch": epoch}.get(name, 0)
                    arrays.append(np.full(unlisted, value, arrays[0].dtype))
            ends[-1][-1] = total
        table = {name: np.concatenate([np.empty(0, dtype), *parts[name]]) for name, dtype in types.items()}
        return table, np.concatenate([np.empty(0, np.int64), *ends])

    def _times(self, capture: _JSON, frames: Array) -> tuple[Array, Array]:
        """Return times and clocks of the frames of a capture.

        The last frames of a capture can have listed times. Without a frame rate, only these and the first frame have a time.
        """
        clock = CLOCKS.index(capture.get("daq:clock", "none"))
        rate = self.layout.frame_rate
        has_time = (frames == 0) | (rate is not None) if "daq:time_ns" in capture else np.zeros(len(frames), np.bool_)
        steps = np.rint(frames * (1e9 / rate if rate else 0.0)).astype(np.int64)
        listed = capture.get("daq:times_ns", [])
        if listed:
            known = np.array([offset is not None for offset in listed])
            has_time[-len(listed) :] = known
            steps[-len(listed) :] = [offset or 0 for offset in listed]
        start = np.uint64(capture.get("daq:time_ns", 0))
        time_ns = np.where(has_time, start + steps.astype(np.uint64), np.uint64(0))
        return time_ns, np.where(has_time, clock, 0).astype(np.uint8)

    def _pieces(self, raw: Array, starts: Array, ends: Array) -> list[Array]:
        size = self.sample_bytes
        if len(ends) and np.all((ends - starts) * size == self.frame_bytes):
            return [raw[: len(ends) * self.frame_bytes].view(self.layout.dtype).reshape(-1, *self.layout.shape())]
        # Frames of different sizes become rows of the largest size, with zeros after shorter frames.
        pieces = []
        for start, end in zip(starts.tolist(), ends.tolist()):
            row = np.zeros(max(self.frame_bytes, (end - start) * size), np.uint8)
            row[: (end - start) * size] = raw[start * size : end * size]
            pieces.append(row[: self.frame_bytes].view(self.layout.dtype).reshape(1, *self.layout.shape()))
        return pieces

    def _labelled(self, label: str) -> Iterator[_JSON]:
        return (note for note in self.notes if note.get("core:label") == label)

    def _spans(self, starts: Array, ends: Array) -> Iterator[Span]:
        for note in self._labelled("missing"):
            for i in range(*_overlap(note, starts, ends).indices(len(ends))):
                first = max(int(note["core:sample_start"]), int(starts[i]))
                last = min(int(note["core:sample_start"]) + int(note.get("core:sample_count", 0)), int(ends[i]))
                first, last = (first - int(starts[i])) // self.parts_of_sample, -((int(starts[i]) - last) // self.parts_of_sample)
                yield Span(i, first, last - first, note.get("daq:cause"))

    def _gaps(self, starts: Array) -> list[Gap]:
        causes = {note["core:sample_start"]: note.get("daq:cause") for note in self._labelled("gap")}
        gaps = {note["core:sample_start"]: int(note["daq:missing_frames"]) for note in self._labelled("gap")}
        # A capture also states the gap before it, for which there may be no annotation.
        for capture in self.captures:
            if missing := int(capture.get("daq:missing_frames", 0)):
                gaps.setdefault(capture["core:sample_start"], missing)
        return [Gap(int(np.searchsorted(starts, start)), gaps[start], causes.get(start)) for start in sorted(gaps)]

    def _present(self, spans: list[Span], frames: int) -> Array | None:
        packets = int(self.info.get("daq:packets_per_frame", 0))
        samples = self.frame_bytes // self.sample_bytes // self.parts_of_sample
        if not packets or packets > samples:
            return None
        present = np.ones((frames, packets), np.bool_)
        borders = self._borders(packets)
        for span in spans:
            end = span.start + span.samples
            if borders is None:
                # Old files do not contain the sizes of packets, so packets are assumed to have the same size.
                present[span.index, span.start * packets // samples : -(-end * packets // samples)] = False
            else:
                # A missing packet is inside the span. Packets beside it can share a sample with it.
                present[span.index] &= (borders[:-1] < span.start) | (borders[1:] > end)
        return present

    def _borders(self, packets: int) -> Array | None:
        """Return the sample at which each packet of a frame begins, and the end of the frame. Returns None if that is not known."""
        first, rest = (int(self.info.get(f"daq:{name}", 0)) for name in ("first_bytes", "packet_bytes"))
        if first == 0 or (rest == 0 and packets > 1) or int(self.info.get("daq:parts", 1)) != 1:
            return None
        ends = np.minimum(first + rest * np.arange(packets), self.frame_bytes)
        return np.concatenate(([0], ends)) / (self.sample_bytes * self.parts_of_sample)

    def _kept(self, starts: Array, ends: Array) -> dict[str, np.ma.MaskedArray[Any, Any]]:
        kept = {
            name: np.ma.MaskedArray(np.zeros(len(ends), np.uint64), mask=np.ones(len(ends), np.bool_))
            for name in self.info.get("daq:kept", [])
        }
        for note in self._labelled("kept"):
            frames = _overlap(note, starts, ends)
            for name, value in note.get("daq:kept", {}).items():
                kept[name][frames] = value
        return kept


def _overlap(note: _JSON, starts: Array, ends: Array) -> slice:
    """Return the frames that share samples with an annotation."""
    start, count = int(note["core:sample_start"]), int(note.get("core:sample_count", 0))
    if count == 0:
        return slice(0, 0)
    first = int(np.searchsorted(ends, start, side="right"))
    return slice(first, int(np.searchsorted(starts, start + count, side="left")))
