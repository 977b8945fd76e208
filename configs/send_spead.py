#!/usr/bin/env python3
"""Send heaps of random samples with spead2 from PyPI, with its default settings.

    pip install spead2 numpy
    daq run configs/spead.toml            # in another terminal
    python3 configs/send_spead.py --save sent.bin
"""

import argparse
import time

import numpy as np
import spead2
import spead2.send

parser = argparse.ArgumentParser(description="Send heaps of random samples with spead2.")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=7148)
parser.add_argument("--heaps", type=int, default=100)
parser.add_argument("--heap", type=int, default=1 << 20, help="bytes of samples in each heap (default: %(default)s)")
parser.add_argument("--pause", type=float, default=0.05, help="seconds between heaps (default: %(default)s)")
parser.add_argument("--packet", type=int, help="max_packet_size of spead2 (default: that of spead2)")
parser.add_argument("--address-bits", type=int, choices=[40, 48], default=40, help="flavour (default: %(default)s)")
parser.add_argument("--first", type=int, default=1, help="first heap counter (default: %(default)s)")
parser.add_argument("--step", type=int, default=1, help="step of the heap counter (default: %(default)s)")
parser.add_argument(
    "--descriptors",
    choices=["first", "every", "third", "own", "none"],
    default="first",
    help="which heaps carry descriptors; own: a separate heap (default: %(default)s, as in spead2)",
)
parser.add_argument("--save", help="also write the samples to this file")
args = parser.parse_args()

config = spead2.send.StreamConfig()
if args.packet:
    config.max_packet_size = args.packet
stream = spead2.send.UdpStream(spead2.ThreadPool(), [(args.host, args.port)], config)
stream.set_cnt_sequence(args.first, args.step)
items = spead2.send.ItemGroup(flavour=spead2.Flavour(4, 64, args.address_bits))
items.add_item(0x1234, "samples", "random bytes", shape=(args.heap,), dtype=np.int8)
if args.descriptors == "own":
    stream.send_heap(items.get_heap(descriptors="all", data="none"))

random = np.random.default_rng(args.port)
sent = []
for i in range(args.heaps):
    sent.append(random.integers(-128, 128, args.heap, dtype=np.int8))
    items["samples"].value = sent[-1]
    described = args.descriptors == "every" or (args.descriptors == "third" and i % 3 == 2)
    # "stale", the default of spead2, sends descriptors that were not sent before.
    descriptors = {"none": "none"}.get(args.descriptors, "all" if described else "stale")
    stream.send_heap(items.get_heap(descriptors=descriptors))
    time.sleep(args.pause)
stream.send_heap(items.get_end())
# When the interpreter exits, spead2 stops its threads first. A stream that still exists then can block forever.
del stream
if args.save:
    with open(args.save, "wb") as file:
        file.writelines(block.tobytes() for block in sent)
