"""The payload of an attached ring in host memory."""

from __future__ import annotations

import mmap

import numpy as np

from ._samples import Array


class HostMemory:
    """The ring file, mapped for reading. `size` is its size in bytes. It stays mapped as long as arrays refer to it."""

    def __init__(self, fd: int, size: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)

    @property
    def address(self) -> int:
        """Address of the first slot."""
        return int(self._bytes.__array_interface__["data"][0])

    def read(self, offset: int, length: int) -> Array:
        """Return a copy of bytes."""
        return self._bytes[offset : offset + length].copy()
