"""Recordings that daq writes from a capture with losses, kept fields and a restart of the sender."""

from __future__ import annotations

import importlib
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import daq

from . import pcap, program

SAMPLES = 256
PACKETS_PER_FRAME = 8
FRAMES = 40
# Lost packets: one, and two in a row across the end of a frame.
LOST = {20, 47, 48}
CONFIG = """
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


class RecordingTest(unittest.TestCase):
    """One run of daq, whose output all tests read."""

    directory: tempfile.TemporaryDirectory[str]
    out: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        path = Path(cls.directory.name)
        packets = (number for number in range(FRAMES * PACKETS_PER_FRAME) if number not in LOST)
        start = 1_700_000_000_000_000_000
        pcap.write(
            path / "capture.pcap",
            ((start + n * 256_000, pcap.packet(n, n // PACKETS_PER_FRAME * 10)) for n in packets),
        )
        with program.start(path, pcap.source("trigger", is_complex=True) + CONFIG) as run:
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
                self.assertEqual(np.asarray(recording[4]).tobytes()[:8], pcap.samples(7 * PACKETS_PER_FRAME)[:8])

    def test_payload_is_that_of_the_packets(self) -> None:
        for recording in self.recordings():
            with self.subTest(recording):
                self.assertGreater(len(recording.frames.pieces), 2)
                self.assertEqual(recording.frames.shape, (FRAMES, PACKETS_PER_FRAME * SAMPLES, 1, 2))
                for frame in recording:
                    packets = range(frame.number * PACKETS_PER_FRAME, (frame.number + 1) * PACKETS_PER_FRAME)
                    expected = b"".join(bytes(4 * SAMPLES) if p in LOST else pcap.samples(p) for p in packets)
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

    def test_wrong_arguments_are_named(self) -> None:
        recording = daq.Recording(self.out, "sigmf")
        wrong_path: Any = 5
        with self.assertRaisesRegex(TypeError, "`path`.*5"):
            daq.Recording(wrong_path)
        with self.assertRaisesRegex(TypeError, "`name`.*5"):
            daq.Recording(self.out, wrong_path)
        wrong_index: Any = slice(3)
        with self.assertRaisesRegex(TypeError, r"slice.*`frames\[…\]`"):
            recording[wrong_index]
        with self.assertRaisesRegex(IndexError, "frame 40 of 40"):
            recording[40]
        with self.assertRaisesRegex(IndexError, "float64"):
            recording.frames[1.5]

    def test_rows_are_indexed_like_an_array(self) -> None:
        rows = daq.Recording(self.out, "sigmf").frames
        array = np.asarray(rows)
        mask = np.arange(len(rows)) % 3 == 0
        for index in (0, -1, slice(3, 20), slice(None, None, 5), slice(30, 2, -7), [1, 30, 2], mask, (slice(5, 9), 0), (4, 7)):
            with self.subTest(index):
                self.assertTrue(np.array_equal(rows[index], array[index]))
        self.assertTrue(np.array_equal(np.stack(list(rows)), array))
        several: list[Any] = [len(rows), True, [[0, 1], [2, 3]], ([0, 1], [2, 3])]
        for index in several:
            with self.subTest(index), self.assertRaises(IndexError):
                rows[index]

    def test_runs_with_other_rates_are_not_joined(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for rate in (1, 2):
                config = f"""
                    [source.adc]
                    driver = "sim"
                    ring = "raw"
                    frames = 3
                    samples = {{ type = "int16", rate = "{rate} MHz" }}
                    [ring.raw]
                    slot = "4 KiB"
                    [sink.disk]
                    driver = "file"
                    input = "raw"
                    path = "out"
                """
                with program.start(Path(folder), config) as run:
                    run.wait(120)
            with self.assertRaisesRegex(daq.RecordingError, "`axis`.*1000000.*one by one|`axis`.*2000000.*one by one"):
                daq.Recording(Path(folder) / "out")

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


RUN = """
[source.adc]
driver = "sim"
ring = "raw"
samples = { type = "int16", rate = "1 MHz" }
packet = "1 KiB"
frames = 20
speed = 100
[ring.raw]
slot = "8 KiB"
[sink.disk]
driver = "file"
input = "raw"
path = "out"
segment = "64 KiB"
[sink.store]
driver = "zarr"
input = "raw"
path = "out"
"""


class SeveralRunsTest(unittest.TestCase):
    """Four runs into one directory. The frame numbers of the last two continue those of the runs before, or seem to."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name)
        for first in (0, 0, 20 * 8, 60 * 8):
            with program.start(self.path, RUN, set={"source.adc.start": first}) as run:
                run.wait(120)

    def test_runs_are_separated_by_gaps(self) -> None:
        for name in ("disk", "store"):
            with self.subTest(name):
                recording = daq.Recording(self.path / "out", name)
                self.assertEqual(recording.run.tolist(), np.repeat([0, 1, 2, 3], 20).tolist())
                self.assertEqual(recording.gaps, [daq.Gap(index, None, "new_run") for index in (20, 40, 60)])
                self.assertEqual(np.flatnonzero(recording.flags & daq.Flags.EPOCH).tolist(), [0, 20, 40, 60])
                steps = np.diff(recording.time)
                # 4096 samples per frame.
                self.assertEqual(np.flatnonzero(steps != np.timedelta64(4_096_000, "ns")).tolist(), [19, 39, 59])
                self.assertTrue((steps > np.timedelta64(0, "ns")).all())
                self.assertIn("4 runs, 3 gaps, complete", repr(recording))
        one = daq.Recording(self.path / "out" / "disk-000004.sigmf-meta")
        self.assertEqual((len(one), one.gaps, set(one.run.tolist())), (8, [], {0}))
        self.assertFalse(np.any(one.flags & daq.Flags.EPOCH))

    def test_a_file_that_is_being_written_is_named(self) -> None:
        out = self.path / "out"
        (out / "disk-000100.sigmf-data.partial").touch()
        (out / "other-000000.sigmf-data.partial").touch()
        recording = daq.Recording(out, "disk")
        self.assertEqual((len(recording), recording.state), (80, "writing"))
        for path, name in ((out, "other"), (out / "disk-000100.sigmf-meta", None), (out / "disk-000100.sigmf-data", None)):
            with self.assertRaisesRegex(daq.RecordingError, "-000.00.sigmf-data.partial is being written.*complete"):
                daq.Recording(path, name)
        # A file of another recording, whose name begins with the same letters, is not mentioned.
        with self.assertRaisesRegex(daq.RecordingError, "contains no recording named 'oth'; names: disk, store"):
            daq.Recording(out, "oth")

    def test_runs_are_a_coordinate_of_xarray(self) -> None:
        try:
            import xarray  # noqa: F401, PLC0415
        except ImportError:
            self.skipTest("xarray is not installed")
        for name in ("disk", "store"):
            dataset = daq.Recording(self.path / "out", name).to_xarray()
            second = dataset.sel(frame=dataset["run"] == 1)
            self.assertEqual(second["number"].values.tolist(), list(range(20)))
            mean = dataset["frames"].groupby("run").mean(("frame", "point"))
            self.assertEqual(mean.sizes["run"], 4)


if __name__ == "__main__":
    unittest.main()
