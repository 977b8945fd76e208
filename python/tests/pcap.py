"""Writes captures of UDP packets."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable


def write(path: str | os.PathLike[str], packets: Iterable[tuple[int, bytes]], port: int = 4954) -> None:
    """Write UDP packets to `port` with these times in nanoseconds and payloads."""
    with open(path, "wb") as file:
        # Nanosecond resolution, Ethernet.
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for time_ns, payload in packets:
            udp = struct.pack(">HHHH", 5000, port, 8 + len(payload), 0) + payload
            head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            frame = bytes(12) + b"\x08\x00" + head + udp
            file.write(struct.pack("<IIII", *divmod(time_ns, 10**9), len(frame), len(frame)) + frame)
