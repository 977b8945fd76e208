"""Attached rings of a running daq, which overwrites frames as fast as it can."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import daq

from . import pcap
from .program import binary, start

PACKETS_PER_FRAME = 64
FRAMES = 50
CONFIG = """
[ring.raw]
slot = "64 KiB"
slots = 4
attach = { guarantee = true, hold = "30 s" }
[sink.none]
driver = "null"
input = "raw"
guarantee = false
[http]
listen = "127.0.0.1:0"
"""


class LiveTest(unittest.TestCase):
    """A pipeline of which each frame has a kept field that determines its payload."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name)
        self.payloads = [pcap.samples(frame * PACKETS_PER_FRAME, PACKETS_PER_FRAME) for frame in range(FRAMES)]
        packets = ((10**9 * n, pcap.packet(n, n // PACKETS_PER_FRAME)) for n in range(FRAMES * PACKETS_PER_FRAME))
        pcap.write(self.path / "capture.pcap", packets)
        self.run_of_daq = self.start()

    def start(self, **options: Any) -> daq.Run:
        source = pcap.source("id", keys="loop = true\nbackpressure = false")
        run = start(self.path, source + CONFIG, **options)
        self.addCleanup(run.stop)
        return run

    def test_a_run_with_variables_of_its_own_is_found(self) -> None:
        environ = {**os.environ, "XDG_STATE_HOME": str(self.path / "elsewhere")}
        configuration = str(self.path / "daq.toml")
        # `select` cannot wait for a file descriptor above 1023.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limit[1]), limit[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        with contextlib.ExitStack() as files:
            for _ in range(1100):
                files.enter_context(open(os.devnull, "rb"))
            names = {"daq.name": "other"}
            run = daq.run(configuration, cwd=self.path, binary=binary(), env=environ, set=names)
            self.addCleanup(run.stop)
            self.assertEqual(run.pipeline().pid, run.pid)

    def attach(self, **options: object) -> daq.Attachment:
        ring = self.run_of_daq.attach("raw", **options)
        self.addCleanup(ring.close)
        return ring

    def is_intact(self, frame: daq.AttachedFrame, data: bytes) -> bool:
        """Return whether bytes are the payload of this frame, apart from missing packets."""
        expected = bytearray(self.payloads[frame["id"]])
        for first, count in frame.spans:
            expected[2 * first : 2 * (first + count)] = bytes(2 * count)
        return data == bytes(expected)

    def test_valid_is_true_only_for_intact_frames(self) -> None:
        ring = self.attach(newest=False)
        valid = overwritten = 0
        end = time.monotonic() + 120
        while (valid < 200 or overwritten < 20) and time.monotonic() < end:
            frame = next(ring)
            if not frame.kept:
                continue
            if valid >= 200:
                time.sleep(0.01)
            data = np.asarray(frame).tobytes()
            if frame.valid:
                valid += 1
                self.assertTrue(self.is_intact(frame, data), frame)
            else:
                overwritten += 1
        self.assertGreaterEqual(valid, 200)
        self.assertGreaterEqual(overwritten, 20)

    def test_copies_are_always_intact(self) -> None:
        ring = self.attach(copy=True)
        for _ in range(200):
            frame = next(ring)
            if frame.kept:
                self.assertTrue(self.is_intact(frame, np.asarray(frame).tobytes()), frame)

    def test_guaranteed_frames_are_consecutive_and_do_not_change(self) -> None:
        ring = self.attach(guarantee=True)
        last = None
        for i in range(200):
            frame = next(ring)
            if last is not None:
                self.assertEqual(frame.index, last + 1)
            last = frame.index
            if i % 20 == 0:
                time.sleep(0.01)
            if frame.kept:
                self.assertTrue(self.is_intact(frame, np.asarray(frame).tobytes()), frame)
            self.assertTrue(frame.valid)
        self.assertEqual(ring.counts["overrun"], 0)

    def test_the_ledger_counts_what_the_clients_read(self) -> None:
        pipeline = self.run_of_daq.pipeline()
        self.assertEqual([p.pid for p in daq.list(self.path / "state")], [pipeline.pid])
        with self.attach(newest=False) as ring:
            for _ in range(50):
                next(ring)
            status = daq.status(state_dir=self.path / "state")
            self.assertEqual(status["name"], "daq")
            self.assertTrue(any(reader.get("process") for reader in status["report"]["readers"].values()), status)
        counts = ring.counts
        self.assertEqual(self.run_of_daq.stop(120), 0)
        report = self.run_of_daq.report
        assert report is not None
        client = report["clients"]["raw"]
        self.assertEqual({name: client[name] for name in counts}, counts)
        self.assertEqual(client["published"], client["unread"] + sum(counts.values()), client)

    def test_frames_end_with_the_run(self) -> None:
        ring = self.attach()
        next(ring)
        self.assertEqual(self.run_of_daq.stop(120), 0)
        for _ in ring:
            pass
        self.assertTrue(ring.ended)

    def test_a_client_that_holds_a_frame_too_long_is_revoked(self) -> None:
        self.run_of_daq.pipeline()
        self.assertEqual(self.run_of_daq.stop(120), 0)
        run = self.start(set={"ring.raw.attach": {"guarantee": True, "hold": "100 ms"}})
        with run.attach("raw", guarantee=True) as ring:
            frame = next(ring)
            samples = np.asarray(frame)
            end = time.monotonic() + 120
            while frame.valid and time.monotonic() < end:
                time.sleep(0.01)
            with self.assertRaisesRegex(daq.RevokedError, "ring raw: .*100 ms"):
                next(ring)
            del samples
        self.assertEqual(run.stop(120), 0)
        report = run.report
        assert report is not None
        self.assertEqual(report["clients"]["raw"]["revoked"], 1)

    def test_a_run_that_has_ended_cannot_be_used(self) -> None:
        ring = self.attach()
        self.assertEqual(self.run_of_daq.stop(120), 0)
        for _ in ring:
            pass
        for call in (lambda: self.run_of_daq.attach("raw"), self.run_of_daq.status, self.run_of_daq.pipeline):
            with self.assertRaisesRegex(daq.RunError, "the run has ended"):
                call()
        with self.assertRaisesRegex(daq.AttachError, "no pipeline runs"):
            daq.attach("raw", state_dir=self.path / "state")

    def test_a_killed_run_is_detected(self) -> None:
        ring = self.attach(newest=False)
        next(ring)
        self.run_of_daq.kill()
        with self.assertRaisesRegex(daq.RevokedError, "raw closed the connection"):
            for _ in ring:
                pass
        self.assertEqual(self.run_of_daq.wait(60), 128 + signal.SIGKILL)

    def test_a_run_that_ctrl_c_reached_is_not_ended_at_once(self) -> None:
        self.run_of_daq.pipeline()
        os.kill(self.run_of_daq.pid, signal.SIGINT)
        self.assertEqual(self.run_of_daq.stop(120), 0)
        self.assertIsNotNone(self.run_of_daq.report)

    def test_a_failed_run_reports_the_cause(self) -> None:
        with self.assertRaisesRegex(daq.RunError, "wrong configuration.*\n(.*\n)*.*no-such-key") as raised:
            daq.run("daq.toml", set={"ring.raw.no-such-key": 1}, cwd=self.path, binary=binary())
        self.assertEqual(raised.exception.code, 78)
        with self.assertRaisesRegex(daq.RunError, "cannot find the program"):
            daq.run("daq.toml", binary="no-such-program")


if __name__ == "__main__":
    unittest.main()
