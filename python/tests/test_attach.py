"""Attached rings, with a fake daemon that controls each position."""

from __future__ import annotations

import asyncio
import datetime
import gc
import os
import tempfile
import threading
import unittest
from typing import Any

import numpy as np

import daq

from .fake_daemon import FRAME_BYTES, LAYOUT, FakeDaemon


def payload(index: int) -> bytes:
    """Return the bytes of a frame that no other frame has."""
    return (np.arange(FRAME_BYTES // 2) + 100 * index).astype("<i2").tobytes()


class AttachTest(unittest.TestCase):
    """One fake daemon per test."""

    def setUp(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.daemon = self.start()

    def start(self, **options: Any) -> FakeDaemon:
        daemon = FakeDaemon(self.directory.name, **options)
        self.addCleanup(daemon.stop)
        return daemon

    def attach(self, **options: Any) -> daq.Attachment:
        ring = daq.attach("adc", state_dir=self.directory.name, **options)
        self.addCleanup(ring.close)
        return ring

    def publish(self, frames: int = 1, **meta: int) -> None:
        for _ in range(frames):
            self.daemon.publish(payload(self.daemon.published), **meta)

    def read(self, ring: daq.Attachment) -> daq.AttachedFrame:
        frame = ring.read(timeout=60)
        assert frame is not None
        return frame

    def assert_payload(self, frame: daq.AttachedFrame) -> None:
        samples = np.asarray(frame)
        self.assertEqual((samples.shape, samples.dtype), ((8, 2), np.dtype("<i2")))
        self.assertEqual(samples.tobytes(), payload(frame.index))

    def test_frames_have_the_bytes_and_the_metadata_of_the_ring(self) -> None:
        ring = self.attach()
        self.publish(number=77, epoch=3, flags=1, bitmap=0b1011, mask=0b10, clock=2, time_ns=5)
        frame = self.read(ring)
        self.assert_payload(frame)
        self.assertEqual((frame.index, frame.number, frame.epoch, frame.clock), (0, 77, 3, "kernel"))
        self.assertEqual(frame.time, np.datetime64(5, "ns"))
        self.assertEqual(frame.flags, daq.Flags.INCOMPLETE)
        present = frame.present
        assert present is not None
        self.assertEqual(present.tolist(), [True, True, False, True])
        # Packet 2 has the bytes 16 to 24: two samples of two channels.
        self.assertEqual((frame.spans, frame.missing), ([(4, 2)], 2))
        self.assertEqual(frame.kept, {"trigger": 200})
        self.assertEqual(frame["trigger"], 200)
        with self.assertRaises(KeyError):
            frame["antenna"]

    def test_arrays_share_the_memory_of_the_ring_and_cannot_be_written(self) -> None:
        ring = self.attach()
        self.publish()
        frame = self.read(ring)
        samples = np.asarray(frame)
        self.daemon.memory[0] = 99
        self.assertEqual(samples[0, 0], 99)
        self.assertEqual(np.asarray(frame, dtype=float).dtype, np.float64)
        with self.assertRaises(ValueError):
            samples[0, 0] = 1
        with self.assertRaises(ValueError):
            samples.setflags(write=True)

    def test_frames_in_order_wrap_around_the_ring(self) -> None:
        ring = self.attach(newest=False)
        for index in range(3 * self.daemon.slots):
            self.publish()
            frame = self.read(ring)
            self.assertEqual(frame.index, index)
            self.assert_payload(frame)
            self.assertTrue(frame.valid)
        self.assertIsNone(ring.read(timeout=0))
        self.assertEqual(ring.counts, {"read": 12, "overrun": 0, "discarded": 0})

    def test_the_newest_frame_is_read_and_older_ones_are_discarded(self) -> None:
        ring = self.attach()
        self.publish(3)
        self.assertEqual(self.read(ring).index, 2)
        self.assertIsNone(ring.read(timeout=0))
        self.publish(9)
        self.assertEqual(self.read(ring).index, 11)
        self.assertIsNone(ring.read(timeout=0))
        self.assertEqual(ring.counts, {"read": 2, "overrun": 0, "discarded": 10})

    def test_an_overtaken_reader_skips_and_counts_the_overrun(self) -> None:
        ring = self.attach(newest=False)
        self.publish(10)
        frame = self.read(ring)
        # Three quarters of the ring behind the producer.
        self.assertEqual(frame.index, 7)
        self.assert_payload(frame)
        for index in (8, 9):
            self.assertEqual(self.read(ring).index, index)
        self.assertIsNone(ring.read(timeout=0))
        self.assertEqual(ring.counts, {"read": 3, "overrun": 7, "discarded": 0})

    def test_a_frame_becomes_invalid_when_its_slot_is_reserved_again(self) -> None:
        ring = self.attach(newest=False)
        self.publish()
        frame = self.read(ring)
        self.daemon.reserve(3)
        self.assertTrue(frame.valid)
        self.assertEqual(frame.copy().tobytes(), payload(0))
        self.daemon.reserve(1)
        self.assertFalse(frame.valid)
        with self.assertRaises(daq.OverrunError):
            frame.copy()
        self.assertIsNone(ring.read(timeout=0))
        self.assertEqual(ring.counts, {"read": 0, "overrun": 0, "discarded": 1})

    def test_copies_are_checked_and_stay_valid(self) -> None:
        ring = self.attach(newest=False, copy=True)
        self.publish()
        frame = self.read(ring)
        self.publish(9)
        self.assertTrue(frame.valid)
        self.assert_payload(frame)
        samples = np.asarray(frame)
        del frame
        self.assertEqual(samples.tobytes(), payload(0))

    def test_every_selects_multiples_of_the_index(self) -> None:
        ring = self.attach(newest=False, every=3)
        for index in range(8):
            self.publish()
            frame = ring.read(timeout=0)
            self.assertEqual(frame is not None, index % 3 == 0)
        self.assertEqual(ring.counts, {"read": 3, "overrun": 0, "discarded": 5})

    def test_interval_returns_one_frame_in_this_time(self) -> None:
        ring = self.attach(interval="1 h")
        self.publish()
        self.assertEqual(self.read(ring).index, 0)
        self.publish()
        self.assertIsNone(ring.read(timeout=0))
        for interval in ("3 weeks", -1.0, float("nan")):
            with self.assertRaises(ValueError):
                self.attach(interval=interval)

    def test_a_frame_is_not_held_longer_than_allowed_while_no_frame_is_due(self) -> None:
        self.daemon.hold = 0.05
        ring = self.attach(interval="1 h", guarantee=True)
        self.publish(2)
        self.assertEqual(self.read(ring).index, 0)
        self.assertIsNone(ring.read(timeout=0.01))
        while ring.counts["discarded"] == 0:
            self.assertIsNone(ring.read(timeout=0.01))
        self.daemon.wait_progress(position=2, retired=2)
        self.assertEqual(ring.counts["discarded"], 1)

    def test_reading_begins_where_at_says(self) -> None:
        self.publish(4)
        self.assertEqual(self.read(self.attach(at="newest")).index, 3)
        self.assertEqual(self.read(self.attach(at="oldest")).index, 0)
        at = np.datetime64(1_000_000_002, "ns")
        self.assertEqual(self.read(self.attach(at=at)).index, 2)
        second = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
        self.assertEqual(self.read(self.attach(at=second)).index, 0)

    def test_a_waiting_reader_is_woken(self) -> None:
        ring = self.attach()
        timer = threading.Timer(0.05, self.publish)
        timer.start()
        self.assertEqual(self.read(ring).index, 0)
        timer.join()

    def test_the_iteration_ends_after_the_last_frame_of_a_closed_ring(self) -> None:
        ring = self.attach(at="oldest")
        self.publish(3)
        self.daemon.close_ring()
        self.assertEqual([frame.index for frame in ring], [0, 1, 2])
        self.assertTrue(ring.ended)
        self.daemon.wait_progress(position=3, read=3, overrun=0, discarded=0, retired=3)

    def test_the_iteration_ends_when_the_daemon_announces_the_end(self) -> None:
        ring = self.attach(at="oldest")
        self.publish()
        self.daemon.send({"ended": True})
        self.daemon.disconnect()
        self.assertEqual([frame.index for frame in ring], [0])

    def test_a_revoked_reader_gets_the_reason(self) -> None:
        ring = self.attach()
        self.daemon.send({"revoked": "it was slow"})
        with self.assertRaisesRegex(daq.RevokedError, "it was slow"):
            ring.read(timeout=60)
        with self.assertRaises(daq.RevokedError):
            next(ring)

    def test_a_revoked_guaranteed_reader_gets_no_more_frames(self) -> None:
        ring = self.attach(guarantee=True)
        self.publish(3)
        frame = self.read(ring)
        self.assertTrue(frame.valid)
        # The daemon has revoked the access, and the producer overwrites the frame.
        self.daemon.send({"revoked": "it held a frame for 2 s"})
        self.publish(self.daemon.slots)
        self.assertFalse(frame.valid)
        with self.assertRaisesRegex(daq.RevokedError, "ring adc: it held a frame for 2 s"):
            ring.read(timeout=60)
        with self.assertRaises(daq.RevokedError):
            next(ring)

    def test_a_killed_daemon_is_detected(self) -> None:
        ring = self.attach()
        self.daemon.disconnect()
        with self.assertRaises(daq.RevokedError):
            next(ring)

    def test_a_guaranteed_frame_is_retired_when_the_next_one_is_requested(self) -> None:
        ring = self.attach(guarantee=True)
        self.assertTrue(self.daemon.requests[-1]["guarantee"])
        self.publish(2)
        frame = self.read(ring)
        self.assertTrue(frame.valid)
        self.assertIsNotNone(self.read(ring))
        self.daemon.wait_progress(position=2, read=1, retired=1)

    def test_an_array_holds_the_lease_of_its_frame(self) -> None:
        ring = self.attach(guarantee=True)
        self.publish(3)
        first = np.asarray(self.read(ring))[2:, :1]
        for _ in range(2):
            self.read(ring)
        self.assertIsNone(ring.read(timeout=0))
        self.assertTrue(all(progress["retired"] == 0 for progress in self.daemon.progress))
        del first
        gc.collect()
        self.assertIsNone(ring.read(timeout=0))
        self.daemon.wait_progress(position=3, read=3, retired=3)

    def test_the_reader_reports_its_counts_before_it_leaves(self) -> None:
        with self.attach(newest=False) as ring:
            self.publish(10)
            self.read(ring)
        self.daemon.wait_progress(position=8, read=1, overrun=7, discarded=0)

    def test_async_iteration(self) -> None:
        async def indices() -> list[int]:
            async with daq.attach("adc", at="oldest", state_dir=self.directory.name) as ring:
                threading.Timer(0.05, self.publish, [2]).start()
                threading.Timer(0.2, self.daemon.close_ring).start()
                return [frame.index async for frame in ring]

        self.assertEqual(asyncio.run(indices()), [0, 1])

    def test_dlpack_passes_host_frames_without_a_copy(self) -> None:
        ring = self.attach(guarantee=True)
        self.publish(2)
        frame = self.read(ring)
        self.assertEqual(frame.__dlpack_device__(), (1, 0))
        del_unused = frame.__dlpack__()
        del del_unused
        try:
            samples = np.from_dlpack(frame)
        except (BufferError, AttributeError, RuntimeError) as error:
            self.skipTest(f"NumPy {np.__version__} does not import read-only arrays: {error}")
        self.assertEqual(samples.tobytes(), payload(0))
        self.daemon.memory[0] = 99
        self.assertEqual(samples[0, 0], 99)
        self.read(ring)
        self.assertTrue(all(progress["retired"] == 0 for progress in self.daemon.progress))
        del samples, frame
        self.assertIsNone(ring.read(timeout=0))
        self.daemon.wait_progress(retired=2)

    def test_errors_name_the_fix(self) -> None:
        with self.assertRaisesRegex(daq.AttachError, "fake has adc"):
            daq.attach("nope", state_dir=self.directory.name)
        with self.assertRaisesRegex(daq.AttachError, "start `daq run`"):
            daq.attach("adc", state_dir=os.path.join(self.directory.name, "none"))
        with self.assertRaisesRegex(daq.AttachError, "no ring nope"):
            daq.attach("nope", socket=self.daemon.path)

    def test_list_describes_the_rings(self) -> None:
        (pipeline,) = daq.list(self.directory.name)
        ring = pipeline.rings["adc"]
        self.assertEqual((pipeline.name, ring.layout.shape(), ring.attachable), ("fake", (8, 2), True))
        with self.assertRaisesRegex(daq.AttachError, "no HTTP server"):
            daq.status(state_dir=self.directory.name)


class PackedTest(unittest.TestCase):
    """Frames of a packed sample type."""

    def test_packed_complex_frames_are_unpacked(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            layout = {**LAYOUT, "complex": True, "type": "uint12pmsb", "channels": 1}
            daemon = FakeDaemon(directory, layout=layout)
            self.addCleanup(daemon.stop)
            with daq.attach("adc", state_dir=directory) as ring:
                daemon.publish(bytes([0x12, 0x34, 0x56] * 8))
                frame = next(ring)
                self.assertEqual(np.asarray(frame).shape, (24,))
                values = frame.values()
                self.assertEqual((values.shape, values.dtype), ((8, 1), np.complex64))
                self.assertTrue((values == complex(0x123, 0x456)).all())

    def test_complex_numbers_of_32_bits_are_exact(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            layout = {**LAYOUT, "complex": True, "type": "int32be", "channels": 1, "points": 4}
            daemon = FakeDaemon(directory, layout=layout)
            self.addCleanup(daemon.stop)
            with daq.attach("adc", state_dir=directory) as ring:
                daemon.publish(np.array([16777217, -16777217] * 4, ">i4").tobytes())
                values = next(ring).values()
                self.assertEqual((values.shape, values.dtype), ((4, 1), np.complex128))
                self.assertTrue((values == complex(16777217, -16777217)).all())


if __name__ == "__main__":
    unittest.main()
