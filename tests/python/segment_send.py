"""Sends many datagrams per call (UDP_SEGMENT, segmentation offload), and writes the samples that were sent to a file.

Arguments: `raw` or `spead`, the port and the file. With `raw`, a datagram has a header of 8 bytes, of which the last 4
are the number, and 1000 bytes of payload. With `spead`, PyPI's spead2 creates heaps with its defaults.
"""

import random
import socket
import sys
import time

UDP_SEGMENT = 103


def raw():
    number = 0
    for sends in range(60):
        samples = [random.randbytes(1000) for _ in range(1 + sends % 40)]
        packets = [bytes(4) + (number + i).to_bytes(4, "little") + one for i, one in enumerate(samples)]
        number += len(samples)
        yield b"".join(packets), b"".join(samples)


def spead():
    import numpy as np
    import spead2
    import spead2.send

    stream = spead2.send.BytesStream(spead2.ThreadPool())
    items = spead2.send.ItemGroup()
    items.add_item(0x1234, "samples", "random bytes", shape=(60000,), dtype=np.uint8)
    seen = 0
    for _ in range(40):
        samples = random.randbytes(60000)
        items["samples"].value = np.frombuffer(samples, dtype=np.uint8)
        stream.send_heap(items.get_heap())
        packets = stream.getvalue()
        yield packets[seen:], samples
        seen = len(packets)


def queued(port):
    """Returns the number of bytes queued in the sockets of `port` on this machine."""
    with open("/proc/net/udp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(int(row[4].split(":")[1], 16) for row in rows if int(row[1].split(":")[1], 16) == port)


kind, port, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, {"raw": 1008, "spead": 1472}[kind])
with open(file, "wb") as sent:
    for packets, samples in {"raw": raw, "spead": spead}[kind]():
        sender.sendto(packets, ("127.0.0.1", port))
        sent.write(samples)
        while queued(port) > 0:
            time.sleep(0.0005)
