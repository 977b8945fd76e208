"""Captures of UDP packets with 16-bit samples, and the source that replays them.

A packet consists of its number, a kept field (64 bits each, big-endian) and samples.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

import numpy as np

#: Payload of a packet in bytes.
PAYLOAD = 1024
_SOURCE = """
[source.detector]
driver = "replay"
path = "capture.pcap"
port = 4954
speed = "free"
ring = "raw"
samples = {{ type = "int16", complex = {complex}, rate = "1 MHz" }}
{keys}
[source.detector.format]
kind = "raw"
header = "16 B"
payload = "{payload} B"
sequence = {{ offset = 0, bytes = 8, endian = "big" }}
keep = [{{ name = "{keep}", offset = 8, bytes = 8, endian = "big" }}]
"""


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


def source(keep: str, *, is_complex: bool = False, keys: str = "") -> str:
    """Return the configuration of the source `detector`, which replays `capture.pcap` into the ring `raw`."""
    return _SOURCE.format(keep=keep, complex=str(is_complex).lower(), keys=keys, payload=PAYLOAD)


def samples(packet: int, packets: int = 1) -> bytes:
    """Return the samples of consecutive packets: each number is unique in 32749 numbers."""
    count = PAYLOAD // 2
    return (np.arange(packet * count, (packet + packets) * count) % 32749).astype("<i2").tobytes()


def packet(number: int, kept: int) -> bytes:
    """Return a packet with its header."""
    return struct.pack(">QQ", number, kept) + samples(number)
