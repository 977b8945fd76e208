"""Sends frames of which each antenna sends one heap, with PyPI's spead2 and its default settings.

Argument: a JSON object with `ports` (one for all antennas, or one for each), `file` (the samples of all frames, antenna by
antenna), `antennas`, `frames`, `heap` (bytes of samples), and `counters`: `own` (each antenna counts its heaps from 1), `parallel`
(likewise, and all antennas send at the same time) or `mixed` (the counters of an antenna are in a range of their own). Each heap has the immediate items `timestamp` (0x1600), which grows by
4096 from frame to frame, and `antenna` (0x4101), a short item `flags`, and the samples `adc`.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import spead2
import spead2.send

job = json.loads(sys.argv[1])
source = np.random.default_rng(7)
frames = source.integers(0, 256, (job["frames"], job["antennas"], job["heap"]), dtype=np.uint8)


def antenna(i):
    """Returns the stream and the items of antenna `i`."""
    port = job["ports"][i % len(job["ports"])]
    stream = spead2.send.UdpStream(spead2.ThreadPool(), [("127.0.0.1", port)])
    items = spead2.send.ItemGroup()
    items.add_item(0x1600, "timestamp", "sample number", shape=(), format=[("u", 40)], value=0)
    items.add_item(0x4101, "antenna", "number of the antenna", shape=(), format=[("u", 40)], value=i)
    items.add_item(0x4300, "flags", "one flag for each channel", shape=(700,), dtype=np.uint8, value=np.zeros(700, np.uint8))
    items.add_item(0x4301, "adc", "samples", shape=(job["heap"],), dtype=np.uint8)
    return stream, items


antennas = [antenna(i) for i in range(job["antennas"])]


def send(n, i):
    """Sends the heap of antenna `i` in frame `n`."""
    stream, items = antennas[i]
    items["timestamp"].value = 1_000_000 + 4096 * n
    items["antenna"].value = i
    items["flags"].value = np.full(700, n % 256, np.uint8)
    items["adc"].value = frames[n, i]
    counter = ((i + 5) << 32) + n * 3 + i if job["counters"] == "mixed" else n + 1
    stream.send_heap(items.get_heap(descriptors="stale", data="all"), cnt=counter)


with ThreadPoolExecutor() as threads:
    for n in range(job["frames"]):
        if job["counters"] == "parallel":
            list(threads.map(send, [n] * job["antennas"], range(job["antennas"])))
        else:
            for i in range(job["antennas"]):
                send(n, i)
        time.sleep(0.002)
for stream, items in antennas:
    stream.send_heap(items.get_end())
# Python can hang at its end while streams exist.
antennas.clear()
del stream, items
with open(job["file"], "wb") as file:
    file.write(frames.tobytes())
