"""Sends heaps of different sizes with PyPI's spead2 and its default settings.

Argument: a JSON object with `port`, `heaps` (their number), `max` (bytes of the largest heap), `alike` (number of first heaps of
that size), `file` (the samples of all heaps without descriptors, one after the other) and `descriptors`: `default` (the first
heap contains descriptors and samples) or `own` (a heap of its own contains the descriptors).
"""

import json
import sys
import time

import numpy as np
import spead2
import spead2.send

job = json.loads(sys.argv[1])
source = np.random.default_rng(11)
sizes = source.integers(1, job["max"], job["heaps"], endpoint=True)
sizes[: job["alike"]] = job["max"]
stream = spead2.send.UdpStream(spead2.ThreadPool(), [("127.0.0.1", job["port"])])
items = spead2.send.ItemGroup()
items.add_item(0x1600, "timestamp", "sample number", shape=(), format=[("u", 40)], value=0)
items.add_item(0x4301, "events", "events of one pulse", shape=(None,), format=[("u", 8)])
if job["descriptors"] == "own":
    stream.send_heap(items.get_heap(descriptors="all", data="none"))
sent = []
for n, size in enumerate(sizes):
    items["timestamp"].value = 4096 * n
    items["events"].value = source.integers(0, 256, size, dtype=np.uint8)
    stream.send_heap(items.get_heap())
    if n > 0 or job["descriptors"] == "own":
        sent.append(items["events"].value)
    # Together, these heaps fit into the receiver's socket buffer with its default size.
    if n % 4 == 0:
        time.sleep(0.002)
stream.send_heap(items.get_end())
# Python can hang at its end while streams exist.
del stream, items
with open(job["file"], "wb") as file:
    for samples in sent:
        file.write(samples.tobytes())
