"""Frames that this process writes: to a fake daemon, and through a running daq."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import numpy as np

import daq

from .fake_daemon import FakeDaemon
from .program import start

#: One of 30 frames lacks a packet.
LOST = ", ".join(f'"{n}..{n + 1}"' for n in range(41, 6000, 60))
CONFIG = f"""
[source.antenna]
driver = "sim"
ring = "voltages"
samples = {{ type = "int16", channels = 2, rate = "100 kHz" }}
tones = [{{ frequency = "10 kHz", amplitude = 0.5 }}]
packet = "4 KiB"
faults = {{ lose = [{LOST}] }}
[ring.voltages]
slot = "8 KiB"
slots = 64
attach = {{ guarantee = true, hold = "30 s" }}
[source.flags]
driver = "process"
ring = "flags"
samples = {{ type = "uint8", channels = 2 }}
frame = "4 KiB"
[ring.flags]
[sink.flags]
driver = "zarr"
input = "flags"
path = "out"
[sink.none]
driver = "null"
input = "voltages"
"""


class ProduceTest(unittest.TestCase):
    """A fake daemon whose source `flags` has the layout of its ring: 8 points of 2 channels of int16."""

    def setUp(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.daemon = FakeDaemon(self.directory.name)
        self.addCleanup(self.daemon.stop)

    def produce(self, **options: object) -> daq.Producer:
        producer = daq.produce("flags", state_dir=self.directory.name, **options)  # type: ignore[arg-type]
        self.addCleanup(producer.close)
        return producer

    def test_frames_arrive_in_order_with_their_times(self) -> None:
        frames = [np.arange(16, dtype="<i2").reshape(8, 2) + i for i in range(7)]
        with self.produce(slots=3, like="adc") as producer:
            for i, frame in enumerate(frames):
                producer.write(frame, time=np.datetime64(5 + i, "ns"), clock="sensor")
            self.assertTrue(producer.flush(60))
            self.assertEqual((producer.written, producer.refused), (7, 0))
        expected = [(i % 3, 5 + i, 3, frame.tobytes()) for i, frame in enumerate(frames)]
        self.assertEqual(self.daemon.produced, expected)

    def test_a_slot_is_used_again_only_after_its_acknowledgement(self) -> None:
        self.daemon.acknowledge.clear()
        self.daemon.refused = 1
        producer = self.produce(slots=2)
        for _ in range(2):
            producer.write(np.zeros((8, 2), "<i2"))
        self.assertFalse(producer.flush(0.05))
        self.daemon.acknowledge.set()
        producer.write(np.ones(16, np.bool_))
        self.assertTrue(producer.flush(60))
        self.assertEqual(producer.refused, 1)
        self.assertEqual(self.daemon.produced[-1][3], np.ones(16, "<i2").tobytes())

    def test_a_frame_has_the_time_and_the_flags_of_the_frame_that_it_is_like(self) -> None:
        with daq.attach("adc", at="oldest", state_dir=self.directory.name) as ring, self.produce() as producer:
            producer.write(np.zeros(16, "<i2"))
            self.daemon.publish(bytes(32), time_ns=78, clock=6, flags=0b1011)
            frame = next(ring)
            producer.write(frame.copy(), frame)
        self.assertEqual([entry[1:3] for entry in self.daemon.produced], [(0, 0), (78, 6)])
        # A process cannot begin an epoch.
        self.assertEqual(self.daemon.flags, [0, 0b1001])

    def test_wrong_frames_are_rejected(self) -> None:
        producer = self.produce()
        for wrong in [np.zeros(15, "<i2"), np.zeros((2, 8), "<i2")]:
            with self.assertRaisesRegex(ValueError, r"the shape \(8, 2\)"):
                producer.write(wrong)
        with self.assertRaisesRegex(TypeError, "int16"):
            producer.write(np.zeros(16))
        self.assertEqual(producer.written, 0)
        with self.assertRaisesRegex(daq.AttachError, "fake has flags"):
            daq.produce("nope", state_dir=self.directory.name)
        with self.assertRaisesRegex(daq.AttachError, "no ring 'nope'"):
            self.produce(like="nope")

    def test_a_daemon_that_ends_the_access_gives_the_reason(self) -> None:
        producer = self.produce()
        self.daemon.send({"revoked": "the source stopped"})
        with self.assertRaisesRegex(daq.RevokedError, "the source stopped"):
            for _ in range(100):
                producer.write(np.zeros(16, "<i2"))
                producer.flush()

    def test_python_is_a_kernel_between_two_rings(self) -> None:
        path = Path(self.directory.name)
        expected, times, flagged = [], [], []
        with start(path, CONFIG) as run:
            ring = run.attach("voltages", guarantee=True)
            with ring, daq.produce("flags", like="voltages", state_dir=path / "state") as flags:
                for frame in ring:
                    result = frame.values() > 1000
                    flags.write(result, frame)
                    expected.append(result.astype(np.uint8))
                    times.append(frame.time)
                    flagged.append(daq.Flags.INCOMPLETE in frame.flags)
                    if len(expected) == 40:
                        break
        report = run.report
        assert report is not None
        self.assertEqual(report["sources"]["flags"]["expected"], 40)
        recording = daq.Recording(path / "out")
        self.assertTrue(np.array_equal(np.asarray(recording.frames), np.stack(expected)))
        self.assertEqual(recording.time.tolist(), np.array(times).tolist())
        self.assertEqual([daq.Flags.INCOMPLETE in frame.flags for frame in recording], flagged)
        self.assertIn(True, flagged)


if __name__ == "__main__":
    unittest.main()
