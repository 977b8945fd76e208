"""What the benchmarks in this folder share."""

import os
import socket

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The part of a configuration after the source `in`, which receives SPEAD heaps.
HEAPS = """
[source.in.format]
kind = "spead"
heap = "{heap} B"
packet = "{payload} B"
[ring.heaps]
slots = 64
[sink.null]
driver = "null"
input = "heaps"
core = 1
"""


def free_port():
    """Returns a UDP port that is free at present."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shape(packet):
    """Returns the payload of a packet and the size of a heap, in bytes, for packets of `packet` bytes."""
    payload = packet - 48
    return payload, (1 << 20) // payload * payload
