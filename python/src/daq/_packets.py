"""Positions of a frame's packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ._samples import Array


class PacketSizes(NamedTuple):
    """How the payload of a frame is divided into packets.

    A frame consists of `parts` equal parts, each with the same number of packets. The first packet of a part has `first`
    bytes, the others have `rest` bytes, and the last one has what remains.
    """

    packets: int
    first: int
    rest: int
    parts: int = 1

    def offsets(self, frame_bytes: int) -> Array:
        """Return the offset of each packet in a frame of `frame_bytes` bytes, and the end of the frame."""
        parts = max(self.parts, 1)
        per_part, part_bytes = max(self.packets // parts, 1), frame_bytes // parts
        index = np.arange(self.packets + 1)
        inside = index % per_part
        offset = np.where(inside == 0, 0, self.first + (inside - 1) * self.rest)
        return np.minimum(index // per_part * part_bytes + np.minimum(offset, part_bytes), frame_bytes)

    def missing(self, present: Array, frame_bytes: int, sample_bits: int) -> Iterator[tuple[int, int]]:
        """Return the ranges of samples that did not arrive, as first sample and number of samples.

        `present` says for each packet whether it arrived. A sample of which a part is missing is missing.
        """
        offsets = self.offsets(frame_bytes) * 8
        absent = np.concatenate(([False], ~present[: self.packets], [False]))
        edges = np.flatnonzero(absent[1:] != absent[:-1])
        end = 0
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist()):
            # Two packets may share a sample, which must not be in two ranges.
            start = max(end, int(offsets[first]) // sample_bits)
            end = max(end, -(-int(offsets[last]) // sample_bits))
            if end > start:
                yield start, end - start
