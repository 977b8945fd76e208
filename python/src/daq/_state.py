"""The state file of an attached ring: positions and one record per slot.

The format is described in "The attach protocol" of the documentation.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from . import _futex
from ._errors import AttachError
from ._flags import Flags, clock_name
from ._packets import PacketSizes
from ._samples import Array

MAGIC = 0x31676E6972716164
VERSION = 1
RECORDS = 4096
_HEAD = 7
_LOW = 0xFFFF_FFFF


class Record(NamedTuple):
    """The metadata of a frame."""

    number: int
    epoch: int
    flags: Flags
    time_ns: int
    clock: str
    length: int
    arrived: int
    sizes: PacketSizes
    present: Array | None
    kept: dict[str, int]


class RingState:
    """The positions and records of a ring, mapped for reading.

    `ring` is the member `ring` of the daemon's reply. Raises AttachError if the file has another format.
    """

    def __init__(self, fd: int, ring: Mapping[str, Any]) -> None:
        self.slots = int(ring["slots"])
        self._stride = int(ring["record_stride"]) // 8
        self._bitmap = int(ring["bitmap_words"])
        self._kept: list[str] = list(ring.get("kept", []))
        size = RECORDS + self.slots * self._stride * 8
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._words = np.frombuffer(self._map, "<u8")
        view = memoryview(self._map)
        # Indexing these views is one aligned load.
        self._positions = view[:320].cast("Q")
        self._futex = view[256:260].cast("I")
        self._address = int(self._words.__array_interface__["data"][0]) + 256
        self._fence = _futex.Fence()
        if (self._positions[0], self._positions[1]) != (MAGIC, VERSION):
            raise AttachError(
                f"the state of the ring has version {self._positions[1]}; this package supports version {VERSION}; "
                "install the version of the package that belongs to the daemon"
            )

    @property
    def published(self) -> int:
        """Frames before this one can be read."""
        published = self._positions[8]
        self._fence()
        return published

    @property
    def reserved(self) -> int:
        """Frames before this one are being, or have been, written. Ordered after all earlier loads."""
        self._fence()
        return self._positions[16]

    @property
    def is_closed(self) -> bool:
        """Whether the producer has ended. Load this before `published` to see all its frames."""
        closed = self._positions[24] != 0
        self._fence()
        return closed

    def is_intact(self, index: int) -> bool:
        """Return whether what was read of frame `index` so far is that frame, and not a later one in the same slot."""
        return self.reserved <= index + self.slots

    def wait(self, position: int, timeout: float) -> None:
        """Wait until frame `position` is published, the ring is closed, or about `timeout` seconds have passed."""
        word = self._futex[0]
        if not self.is_closed and self.published <= position:
            _futex.wait(self._address, word, timeout)

    def record(self, index: int) -> Record:
        """Return the metadata of frame `index`. Check `is_intact` afterwards."""
        start = RECORDS // 8 + index % self.slots * self._stride
        # A private copy, because the values below must come from one state of the record.
        words = self._words[start : start + self._stride].copy()
        number, flags, time_ns, clock, length, packets, sizes = words[:_HEAD].tolist()
        bitmap = words[_HEAD : _HEAD + self._bitmap]
        count = packets & _LOW
        present = None
        if count:
            bits = np.unpackbits(bitmap.view(np.uint8), bitorder="little")
            present = bits[:count].view(np.bool_)
            present.setflags(write=False)
        kept = {}
        if self._kept:
            mask, *values = words[_HEAD + self._bitmap :][: 1 + len(self._kept)].tolist()
            kept = {name: value for i, (name, value) in enumerate(zip(self._kept, values)) if mask >> i & 1}
        return Record(
            number=number,
            epoch=flags & _LOW,
            flags=Flags(flags >> 32),
            time_ns=time_ns,
            clock=clock_name(clock & 0xFF),
            length=length,
            arrived=packets >> 32,
            sizes=PacketSizes(count, sizes & _LOW, sizes >> 32, clock >> 32),
            present=present,
            kept=kept,
        )
