#!/usr/bin/env bash
# spead2 4.5.1: an item of length 0 keeps the value of the previous heap in the receiver
#
# Guess:   a heap with an empty list of events sets the item in the receiver to an empty array.
# Instead: the receiver skips items without bytes. After heaps with the events [1, 2, 3], [] and [4], the item group shows
#          [1, 2, 3], [1, 2, 3] and [4], while the count beside it shows 3, 0 and 1. update() does not return the item for
#          the second heap, which is the only sign. A stream that begins with [] shows None, never an empty array.
# Matters: lists of photons, hits or peaks have a variable length. The events of one frame are counted again in each empty
#          frame after it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need spead2==4.5.1 numpy==2.4.6
check <<'END'
import numpy as np
import spead2
import spead2.recv
import spead2.send


def through_stream(frames):
    """Returns the events and their count in the receiver after each heap, and the names that update() returns."""
    send = spead2.send.ItemGroup()
    send.add_item(0x1000, "events", "event numbers", shape=(None,), format=[("u", 16)])
    send.add_item(0x1001, "count", "number of events", shape=(), format=[("u", 40)])
    stream = spead2.send.BytesStream(spead2.ThreadPool())
    for events in frames:
        send["events"].value = np.array(events, "u2")
        send["count"].value = len(events)
        stream.send_heap(send.get_heap())
    stream.send_heap(send.get_end())

    receiver = spead2.recv.Stream(spead2.ThreadPool())
    receiver.add_buffer_reader(stream.getvalue())
    items = spead2.ItemGroup()
    for heap in receiver:
        updated = items.update(heap)
        events = items["events"].value
        yield None if events is None else events.tolist(), int(items["count"].value), sorted(updated)


received = list(through_stream([[1, 2, 3], [], [4]]))
print(received)
both = ["count", "events"]
assert received == [([1, 2, 3], 3, both), ([1, 2, 3], 0, ["count"]), ([4], 1, both)]
received = list(through_stream([[], [4]]))
print(received)
assert received == [(None, 0, ["count"]), ([4], 1, both)]
END
