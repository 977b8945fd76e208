"""Sends heaps of random bytes with PyPI's spead2, and writes them to a file in the order of their heap counters.

Argument: a JSON object with `host` (default: this host), `port`, `file`, `heaps`, `heap` (bytes), `packet` (bytes of
a UDP packet), `address_bits`, `repeat` (item pointers in every packet), `order` (`plain`, `shuffled`, `interleaved`),
`descriptors` (in their `own` heap, or in the `first` one), `describe_every` (heaps) and `rate` (bytes per second).
"""

import json
import random
import sys
import time

import numpy as np
import spead2
import spead2.send

ITEM = 0x1234


def queued(port):
    """Returns the number of bytes queued in the sockets of `port` on this machine."""
    with open("/proc/net/udp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(int(row[4].split(":")[1], 16) for row in rows if int(row[1].split(":")[1], 16) == port)


def drain(port):
    """Waits until the receiver has read all data, because its buffer may be smaller than the data sent next."""
    end = time.monotonic() + 60
    while queued(port) > 0 and time.monotonic() < end:
        time.sleep(0.0005)


def send(job):
    flavour = spead2.Flavour(4, 64, job["address_bits"])
    config = spead2.send.StreamConfig(max_packet_size=job["packet"], rate=job["rate"], burst_size=16384, max_heaps=64)
    stream = spead2.send.UdpStream(spead2.ThreadPool(), [(job.get("host", "127.0.0.1"), job["port"])], config)
    items = spead2.send.ItemGroup(flavour=flavour)
    items.add_item(ITEM, "samples", "random bytes", shape=(job["heap"],), dtype=np.uint8)

    def heap(descriptors, data, values=None):
        if values is not None:
            items[ITEM].value = values
        made = items.get_heap(descriptors=descriptors, data=data)
        made.repeat_pointers = job["repeat"]
        return made

    source = np.random.default_rng(job["port"])
    blocks = [source.integers(0, 256, job["heap"], dtype=np.uint8) for _ in range(job["heaps"])]
    counter = 1
    if job["descriptors"] == "own":
        stream.send_heap(heap("all", "none"), cnt=counter)
        counter += 1
    made = []
    for i, block in enumerate(blocks):
        every = job.get("describe_every")
        if every and i % every == 0 and i > 0:
            made.append((counter, heap("all", "none")))
            counter += 1
        with_descriptors = job["descriptors"] == "first" and i == 0
        made.append((counter, heap("all" if with_descriptors else "none", "all", block)))
        counter += 1
    # The receiver starts numbering with the first heap that arrives, so that heap is always sent first.
    head, rest = made[:1], made[1:]
    if job["order"] == "shuffled":
        shuffle = random.Random(job["port"])
        groups = [rest[i : i + 4] for i in range(0, len(rest), 4)]
        for group in groups:
            shuffle.shuffle(group)
        rest = [one for group in groups for one in group]
    for number, one in head:
        stream.send_heap(one, cnt=number)
    if job["order"] == "interleaved":
        for i in range(0, len(rest), 3):
            references = [spead2.send.HeapReference(one, cnt=number) for number, one in rest[i : i + 3]]
            stream.send_heaps(references, spead2.send.GroupMode.ROUND_ROBIN)
            drain(job["port"])
    else:
        for number, one in rest:
            stream.send_heap(one, cnt=number)
            drain(job["port"])
    stream.send_heap(items.get_end(), cnt=counter)
    with open(job["file"], "wb") as file:
        for block in blocks:
            file.write(block.tobytes())


for text in sys.argv[1:]:
    send(json.loads(text))
