#!/usr/bin/env python3
"""Send UDP packets as a detector does: a header of 16 bytes, then 512 samples. Needs no packages.

    daq run configs/raw.toml              # in another terminal
    python3 configs/send_raw.py --skip 700 --skip 701
"""

import argparse
import array
import math
import socket
import struct
import sys
import time

SAMPLES = 512  # per packet; 0.512 ms at 1 MHz

parser = argparse.ArgumentParser(description="Send UDP packets with a sequence number, a time and int16 samples.")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=4951)
parser.add_argument("--packets", type=int, default=6400)
parser.add_argument("--skip", type=int, action="append", default=[], help="a packet that is not sent")
args = parser.parse_args()

sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
start = time.time_ns()
for number in range(args.packets):
    first = number * SAMPLES
    samples = array.array("h", (int(8000 * math.sin(2 * math.pi * 0.01 * (first + i))) for i in range(SAMPLES)))
    if sys.byteorder == "big":
        samples.byteswap()  # daq stores bytes as they arrive and reads them as little-endian
    header = struct.pack(">QQ", number, start + first * 1000)
    if number not in args.skip:
        sender.sendto(header + samples.tobytes(), (args.host, args.port))
    # Keep the sample rate of 1 MHz.
    time.sleep(max(0, (start + (first + SAMPLES) * 1000 - time.time_ns()) / 1e9))
