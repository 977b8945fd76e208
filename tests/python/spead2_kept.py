"""Sends heaps of random bytes from one F-engine with PyPI's spead2 and its default settings.

Argument: a JSON object with `port`, `heaps` and `heap` (bytes). Each heap has the immediate items 0x1600 (timestamp) and
0x4101 (feng_id), and the samples. The first heap also contains the descriptors.
"""

import json
import sys

import numpy as np
import spead2
import spead2.send


def send(job):
    stream = spead2.send.UdpStream(
        spead2.ThreadPool(), [("127.0.0.1", job["port"])], spead2.send.StreamConfig(rate=20e6, max_heaps=8)
    )
    items = spead2.send.ItemGroup(flavour=spead2.Flavour(4, 64, 48))
    items.add_item(0x1600, "timestamp", "ticks of the first sample", shape=(), format=[("u", 48)])
    items.add_item(0x4101, "feng_id", "F-engine", shape=(), format=[("u", 48)])
    items.add_item(0x4300, "feng_raw", "samples", shape=(job["heap"],), dtype=np.uint8)
    for i in range(job["heaps"]):
        items["timestamp"].value = 1000 + 4096 * i
        items["feng_id"].value = i % 4
        items["feng_raw"].value = np.full(job["heap"], i, dtype=np.uint8)
        stream.send_heap(items.get_heap(data="all"))
    stream.send_heap(items.get_end())


# In a function, so that the stream ends before the interpreter does.
send(json.loads(sys.argv[1]))
