"""Sends heaps of random bytes with PyPI's spead2 and its default settings until standard input ends.

Argument: a JSON object with `port`, `heap` (bytes) and `first` (counter of the first heap). Heaps with descriptors are sent
at the start only.
"""

import json
import sys
import threading

import numpy as np
import spead2
import spead2.send


def send(job):
    stream = spead2.send.UdpStream(
        spead2.ThreadPool(), [("127.0.0.1", job["port"])], spead2.send.StreamConfig(rate=5e6, max_heaps=4)
    )
    stream.set_cnt_sequence(job["first"], 1)
    items = spead2.send.ItemGroup(flavour=spead2.Flavour(4, 64, 48))
    items.add_item(0x1600, "samples", "", shape=(job["heap"],), dtype=np.uint8)
    stream.send_heap(items.get_heap(descriptors="all", data="none"))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("sending", flush=True)
    heap = 0
    while not ended.is_set():
        heap += 1
        items["samples"].value = np.full(job["heap"], heap % 251, dtype=np.uint8)
        stream.send_heap(items.get_heap(descriptors="none", data="all"))


# In a function, so that the stream ends before the interpreter does.
send(json.loads(sys.argv[1]))
