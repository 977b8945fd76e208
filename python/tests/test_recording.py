"""Recordings that daq writes from a capture with losses, kept fields and a restart of the sender."""

from __future__ import annotations

import importlib
import os
import struct
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import daq

from . import pcap
from .program import binary

SAMPLES = 256
PACKETS_PER_FRAME = 8
FRAMES = 40
# Lost packets: one, and two in a row across the end of a frame.
LOST = {20, 47, 48}
CONFIG = """
[source.detector]
driver = "replay"
path = "capture.pcap"
port = 4954
speed = "free"
ring = "raw"
samples = { type = "int16", complex = true, rate = "1 MHz" }
[source.detector.format]
kind = "raw"
header = "24 B"
payload = "1 KiB"
sequence = { offset = 0, bytes = 8, endian = "big" }
keep = [{ name = "trigger", offset = 8, bytes = 8, endian = "big" }]
[ring.raw]
slot = "8 KiB"
[sink.sigmf]
driver = "file"
input = "raw"
path = "out"
segment = "64 KiB"
[sink.store]
driver = "zarr"
input = "raw"
path = "out"
chunk = "48 KiB"
[sink.whole]
driver = "file"
input = "raw"
path = "whole"
incomplete = "drop"
[sink.whole-store]
driver = "zarr"
input = "raw"
path = "whole"
incomplete = "drop"
[kernel.spectrum]
use = "power-spectrum"
input = "raw"
output = "spectra"
size = 256
[ring.spectra]
[sink.spectra]
driver = "file"
input = "spectra"
path = "out"
"""


def samples(packet: int) -> bytes:
    """Return the payload of a packet: each number is unique in 32768 numbers."""
    first = packet * SAMPLES * 2
    return (np.arange(first, first + SAMPLES * 2) % 32749).astype("<i2").tobytes()


class RecordingTest(unittest.TestCase):
    """One run of daq, whose output all tests read."""

    directory: tempfile.TemporaryDirectory[str]
    out: Path

    @classmethod
    def setUpClass(cls) -> None:
        program = binary()
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        path = Path(cls.directory.name)
        packets = (number for number in range(FRAMES * PACKETS_PER_FRAME) if number not in LOST)
        pcap.write(
            path / "capture.pcap",
            (
                (1_700_000_000_000_000_000 + n * 256_000, struct.pack(">QQQ", n, n // PACKETS_PER_FRAME * 10, 0) + samples(n))
                for n in packets
            ),
        )
        (path / "daq.toml").write_text(CONFIG, encoding="utf-8")
        with daq.run("daq.toml", cwd=path, state_dir="state", binary=program) as run:
            run.wait(120)
        report = run.report
        assert report is not None
        assert report["sources"]["detector"]["lost"]["wire_gap"] == len(LOST), report
        cls.out = path / "out"

    def recordings(self) -> list[daq.Recording]:
        return [daq.Recording(self.out, "sigmf"), daq.Recording(self.out, "store")]

    def test_directories_with_several_recordings_need_a_name(self) -> None:
        self.assertEqual(daq.Recording.names(self.out), ["sigmf", "spectra", "store"])
        with self.assertRaisesRegex(daq.RecordingError, "sigmf.*spectra.*store"):
            daq.Recording(self.out)
        with self.assertRaisesRegex(daq.RecordingError, "sigmf, spectra, store"):
            daq.Recording(self.out, "other")
        with self.assertRaises(daq.RecordingError):
            daq.Recording(self.out / "absent")

    def test_numbers_and_missing_samples_are_exact(self) -> None:
        for recording in self.recordings():
            with self.subTest(recording):
                self.assertEqual(recording.number.tolist(), list(range(FRAMES)))
                self.assertEqual(recording.gaps, [])
                missing = {2: SAMPLES, 5: SAMPLES, 6: SAMPLES}
                self.assertEqual({i: n for i, n in enumerate(recording.missing.tolist()) if n}, missing)
                spans = [(span.index, span.start, span.samples) for span in recording.spans]
                self.assertEqual(spans, [(2, 4 * SAMPLES, SAMPLES), (5, 7 * SAMPLES, SAMPLES), (6, 0, SAMPLES)])
                present = recording.present
                assert present is not None
                self.assertEqual(np.argwhere(~present).tolist(), [[2, 4], [5, 7], [6, 0]])
                self.assertEqual(np.flatnonzero(recording.flags & daq.Flags.INCOMPLETE).tolist(), [2, 5, 6])
                self.assertEqual(recording.state, "complete")

    def test_frames_that_are_not_in_the_files_are_gaps(self) -> None:
        for name in ("whole", "whole-store"):
            with self.subTest(name):
                recording = daq.Recording(self.out.parent / "whole", name)
                self.assertEqual(recording.number.tolist(), [n for n in range(FRAMES) if n not in (2, 5, 6)])
                self.assertEqual(recording.gaps, [daq.Gap(2, 1, None), daq.Gap(4, 2, None)])
                self.assertEqual(recording.missing.sum(), 0)
                self.assertEqual(np.asarray(recording[4]).tobytes()[:8], samples(7 * PACKETS_PER_FRAME)[:8])

    def test_payload_is_that_of_the_packets(self) -> None:
        for recording in self.recordings():
            with self.subTest(recording):
                self.assertGreater(len(recording.frames.pieces), 2)
                self.assertEqual(recording.frames.shape, (FRAMES, PACKETS_PER_FRAME * SAMPLES, 1, 2))
                for frame in recording:
                    packets = range(frame.number * PACKETS_PER_FRAME, (frame.number + 1) * PACKETS_PER_FRAME)
                    expected = b"".join(bytes(4 * SAMPLES) if p in LOST else samples(p) for p in packets)
                    self.assertEqual(np.asarray(frame).tobytes(), expected)
                values = recording.values(slice(3, 5))
                self.assertEqual((values.dtype, values.shape), (np.complex64, (2, 2048, 1)))
                self.assertEqual(values[0, 1, 0], complex(*np.asarray(recording.frames[3])[1, 0]))
                self.assertEqual(len(recording.samples), FRAMES * 2048)

    def test_both_formats_have_the_same_times_and_kept_fields(self) -> None:
        sigmf, store = self.recordings()
        self.assertEqual(sigmf.time.tolist(), store.time.tolist())
        self.assertFalse(np.isnat(sigmf.time).any())
        self.assertEqual(set(sigmf.clock), set(store.clock))
        self.assertEqual(sigmf.layout.sample_rate, 1e6)
        for recording in (sigmf, store):
            self.assertEqual(recording.kept["trigger"].tolist(), [int(n) * 10 for n in recording.number])
            self.assertEqual(recording[-1]["trigger"], (FRAMES - 1) * 10)

    def test_one_segment_can_be_opened(self) -> None:
        whole = daq.Recording(self.out, "sigmf")
        second = daq.Recording(self.out / "sigmf-000001.sigmf-data")
        offset = len(whole.segments[0])
        self.assertTrue(np.array_equal(np.asarray(second.frames), whole.frames[offset : offset + len(second)]))

    def test_rows_are_indexed_like_an_array(self) -> None:
        rows = daq.Recording(self.out, "sigmf").frames
        array = np.asarray(rows)
        mask = np.arange(len(rows)) % 3 == 0
        for index in (0, -1, slice(3, 20), slice(None, None, 5), slice(30, 2, -7), [1, 30, 2], mask, (slice(5, 9), 0), (4, 7)):
            with self.subTest(index):
                self.assertTrue(np.array_equal(rows[index], array[index]))
        self.assertTrue(np.array_equal(np.stack(list(rows)), array))
        with self.assertRaises(IndexError):
            rows[len(rows)]

    def test_spectra_have_a_frequency_axis(self) -> None:
        recording = daq.Recording(self.out, "spectra")
        self.assertEqual(recording.layout.axis["kind"], "frequency")
        self.assertEqual(recording.frames.shape[1:], (1, 256))
        with self.assertRaises(daq.RecordingError):
            recording.samples  # noqa: B018 - the property raises

    def test_other_software_reads_the_same_values(self) -> None:
        try:
            zarr: Any = importlib.import_module("zarr")
        except ImportError:
            self.skipTest("zarr is not installed")
        store = zarr.open_group(os.fspath(self.out / "store-000000.zarr"), mode="r")
        recording = daq.Recording(self.out, "store")
        self.assertTrue(np.array_equal(store["frames"][:], np.asarray(recording.frames)))
        self.assertTrue(np.array_equal(store["timestamp_ns"][:], recording.time_ns))

    def test_datasets_of_xarray(self) -> None:
        try:
            import xarray  # noqa: F401, PLC0415
        except ImportError:
            self.skipTest("xarray is not installed")
        dataset = daq.Recording(self.out, "sigmf").to_xarray()
        self.assertEqual(dataset["frames"].dims, ("frame", "point", "channel", "part"))
        self.assertEqual(int(dataset["missing"].sum()), 3 * SAMPLES)
        self.assertEqual(dataset["trigger"].dtype, np.uint64)
        spectra = daq.Recording(self.out, "spectra").to_xarray()
        self.assertEqual(spectra["frequency"].attrs["units"], "Hz")


if __name__ == "__main__":
    unittest.main()
