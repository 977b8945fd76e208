"""Receives SPEAD heaps with PyPI's spead2 and its default settings, until the sender ends the stream.

Argument: a JSON object with `port`, `file` (the samples of all heaps, in the order of their arrival), and optionally `host`
(default: this host). Prints `ready`, then a JSON object with the counters of the heaps, timestamps, NumPy types and shapes, and
spead2's statistics.
"""

import json
import sys

import numpy as np
import spead2
import spead2.recv

job = json.loads(sys.argv[1])
stream = spead2.recv.Stream(spead2.ThreadPool())
stream.add_udp_reader(job["port"], bind_hostname=job.get("host", "127.0.0.1"))
print("ready", flush=True)
items = spead2.ItemGroup()
counters, times, kinds = [], [], set()
with open(job["file"], "wb") as file:
    for heap in stream:
        updated = items.update(heap)
        if "samples" not in updated:
            continue
        value = updated["samples"].value
        assert isinstance(value, np.ndarray), type(value)
        counters.append(heap.cnt)
        kinds.add((value.dtype.str, str(value.shape)))
        times.append(int(updated["timestamp"].value) if "timestamp" in updated else None)
        file.write(value.tobytes())
# The receiving thread updates the statistics after each batch of packets.
stream.stop()
stats = stream.stats
names = ("heaps", "incomplete_heaps_evicted", "incomplete_heaps_flushed", "packets", "single_packet_heaps")
print(json.dumps({
    "counters": counters,
    "times": times,
    "kinds": sorted(kinds),
    "stats": {name: getattr(stats, name) for name in names},
}), flush=True)
