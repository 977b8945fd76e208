#!/usr/bin/env bash
# scapy 2.8.0, python-pcapng 2.1.1, dpkt 1.9.8: two of three readers of pcapng ignore the option if_tsoffset
#
# Guess:   the readers support if_tsresol and if_tsoffset alike, because the time of a packet is defined by both.
# Instead: all three support the resolutions 10^-9 and 2^-32. With if_tsoffset 1700000000, a packet of half a second after
#          the offset is read at 1700000000.5 by dpkt, and at 0.5 (in 1970) by scapy and python-pcapng. With an offset of
#          -3600 both are one hour late, which is easily taken for a time zone.
# Matters: with the option, a capture program can write ticks since its own start. All intervals are right, so only a
#          comparison with other instruments shows the error.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need scapy==2.8.0 python-pcapng==2.1.1 dpkt==1.9.8
check <<'END'
import io
import struct

import dpkt
import pcapng
from scapy.utils import PcapNgReader


def block(kind, body):
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def option(code, value):
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def capture(ticks, resolution, offset=None):
    """Returns a capture of one Ethernet packet."""
    options = option(9, bytes([resolution]))
    if offset is not None:
        options += option(14, struct.pack("<q", offset))
    section = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = block(1, struct.pack("<HHI", 1, 0, 0) + options + option(0, b""))
    packet = struct.pack("<IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, 60, 60) + bytes(60)
    return section + interface + block(6, packet)


def times(data):
    blocks = pcapng.FileScanner(io.BytesIO(data))
    return {
        "dpkt": float(next(iter(dpkt.pcapng.Reader(io.BytesIO(data))))[0]),
        "scapy": float(PcapNgReader(io.BytesIO(data)).read_packet().time),
        "python-pcapng": float(next(b.timestamp for b in blocks if isinstance(b, pcapng.blocks.EnhancedPacket))),
    }


DAY = 1700000000
POWER_OF_TWO = 0x80
for name, data, expected in (
    ("10^-9", capture(DAY * 10**9 + 5 * 10**8, 9), (DAY + 0.5, DAY + 0.5)),
    ("2^-32", capture((DAY << 32) + (1 << 31), POWER_OF_TWO | 32), (DAY + 0.5, DAY + 0.5)),
    ("10^-6, offset 1700000000", capture(500000, 6, DAY), (DAY + 0.5, 0.5)),
    ("10^-6, offset -3600", capture((DAY + 3600) * 10**6, 6, -3600), (DAY, DAY + 3600)),
):
    read = times(data)
    print(name, read)
    assert (read["dpkt"], read["scapy"], read["python-pcapng"]) == (expected[0], expected[1], expected[1])
END
