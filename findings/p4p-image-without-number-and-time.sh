#!/usr/bin/env bash
# p4p 4.3.0 (EPICS PVA): images of NTNDArray have no number, and the time of an earlier image
#
# Guess:   SharedPV.post(image) counts uniqueId up and sets the current time, as areaDetector does, so a client can detect
#          missing images.
# Instead: uniqueId is always 0, and post() accepts no argument for it. An image without timestamp= keeps the time of the
#          last image that had one; before the first it is 1970. A slow subscriber receives a few of 100 images and
#          nothing that shows the gap; queueSize=200 in the request delivers all. A stack of 16 images is refused because
#          one axis must have the length 3. A stack of 3 images is accepted, and labelled as one colour image.
# Matters: a client of a Python server cannot count losses, and times look valid although they belong to another image.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need p4p==4.3.0 numpy==2.4.6
check <<'END'
import threading
import time

import numpy as np
from p4p.client.thread import Context
from p4p.nt import NTNDArray
from p4p.server import Server
from p4p.server.thread import SharedPV


def image(value, shape=(4, 4)):
    return np.full(shape, value, "u2")


camera = SharedPV(nt=NTNDArray(), initial=image(0))
with (
    Server(providers=[{"camera": camera}], isolate=True) as server,
    Context("pva", conf=server.conf(), useenv=False) as client,
):
    def times(**options):
        camera.post(image(1), **options)
        return client.get("camera").timestamp

    first, second, third = times(), times(timestamp=1700000000.5), times()
    print("times", first, second, third)
    assert (first, second, third) == (0, 1700000000.5, 1700000000.5)

    def receive(request):
        received, last = [], threading.Event()

        def slow(value):
            received.append((int(value[0, 0]), value.raw.uniqueId))
            time.sleep(0.01)
            if value[0, 0] == 100:
                last.set()

        camera.post(image(0))
        with client.monitor("camera", slow, request=request):
            time.sleep(0.5)
            for number in range(1, 101):
                camera.post(image(number))
            assert last.wait(20)
        return received

    default, long = receive(None), receive("record[queueSize=200]field()")
    print("received", default, "with queueSize=200", len(long))
    assert len(default) < 50 and len(long) == 101
    assert {number for _, number in default + long} == {0}

    try:
        camera.post(image(1, (16, 8, 8)))
        refused = False
    except ValueError:
        refused = True
    camera.post(image(1, (3, 8, 8)))
    attributes = client.get("camera").attrib
    print("16 images refused", refused, "3 images", attributes)
    assert refused and attributes["ColorMode"] == 4  # RGB3
END
