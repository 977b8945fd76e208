"""Recordings of images with rows, columns and modules."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import numpy as np

import daq

from . import program

SINKS = """
[ring.{ring}]
slot = "{bytes} B"
[sink.{ring}-sigmf]
driver = "file"
input = "{ring}"
path = "out"
[sink.{ring}-store]
driver = "zarr"
input = "{ring}"
path = "out"
"""
SOURCE = """
[source.{ring}]
driver = "sim"
ring = "{ring}"
packets = 300
packet = "{bytes} B"
restart_at = 200
faults = {{ lose = [2] }}
samples = {{ {samples} }}
"""
MODULES = "modules = [{ x = 0, y = 0 }, { x = 0, y = 5, rotate = 180 }]"
# Ring, samples, and the shape and the dimensions of a frame.
RINGS = [
    ("camera", 'type = "uint16", width = 6, height = 4', (4, 6), ("y", "x")),
    ("colour", 'type = "uint8", channels = 3, width = 6, height = 4', (4, 6, 3), ("y", "x", "channel")),
    ("detector", f'type = "uint16", width = 6, height = 4, {MODULES}', (2, 4, 6), ("module", "y", "x")),
]


class ImagesTest(unittest.TestCase):
    """One run of daq, whose output all tests read."""

    directory: tempfile.TemporaryDirectory[str]
    out: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        path = Path(cls.directory.name)
        config = ""
        for ring, samples, shape, _ in RINGS:
            size = int(np.prod(shape)) * (2 if "uint16" in samples else 1)
            config += SOURCE.format(ring=ring, samples=samples, bytes=size) + SINKS.format(ring=ring, bytes=size)
        with program.start(path, config) as run:
            run.wait(120)
        cls.out = path / "out"

    def test_frames_have_rows_and_columns(self) -> None:
        for ring, _, shape, dimensions in RINGS:
            for sink in ("sigmf", "store"):
                with self.subTest(ring=ring, sink=sink):
                    recording = daq.Recording(self.out, f"{ring}-{sink}")
                    self.assertEqual(recording.frames.shape, (300, *shape))
                    self.assertEqual(recording.layout.dimensions, dimensions)
                    self.assertEqual(recording.layout.shape(), shape)

    def test_lost_images_are_missing(self) -> None:
        for ring, _, shape, _ in RINGS:
            for sink in ("sigmf", "store"):
                with self.subTest(ring=ring, sink=sink):
                    recording = daq.Recording(self.out, f"{ring}-{sink}")
                    pixels = int(np.prod(shape)) // recording.layout.channels
                    self.assertEqual(np.flatnonzero(recording.missing).tolist(), [2, 202])
                    self.assertEqual(recording.missing[[2, 202]].tolist(), [pixels] * 2)
                    self.assertEqual(np.flatnonzero(recording.flags & daq.Flags.INCOMPLETE).tolist(), [2, 202])
                    self.assertEqual(recording.epoch.tolist(), [1] * 200 + [2] * 100)

    def test_modules_are_assembled(self) -> None:
        recording = daq.Recording(self.out, "detector-store")
        modules = recording.values(slice(None))
        whole = recording.layout.assemble(modules, fill=9)
        self.assertEqual(whole.shape, (300, 9, 6))
        np.testing.assert_array_equal(whole[:, :4], modules[:, 0])
        np.testing.assert_array_equal(whole[:, 5:], modules[:, 1, ::-1, ::-1])
        self.assertTrue((whole[:, 4] == 9).all())
        with self.assertRaisesRegex(ValueError, "shape"):
            recording.layout.assemble(modules[0, 0])

    def test_image_without_modules_is_not_assembled(self) -> None:
        recording = daq.Recording(self.out, "camera-sigmf")
        with self.assertRaisesRegex(ValueError, "several modules"):
            recording.layout.assemble(recording.values(slice(None)))


class ShortImagesTest(unittest.TestCase):
    """Frames that are shorter than an image, as with an incomplete recording."""

    def test_short_image_has_whole_rows(self) -> None:
        for order, channels, shape in (
            ("interleaved", 1, (2, 4)),
            ("interleaved", 3, (2, 4, 3)),
            ("planar", 3, (3, 11)),
        ):
            with self.subTest(order=order, channels=channels):
                axis = {"kind": "pixels", "width": 4, "height": 5}
                layout = daq.Layout("uint8", channels=channels, points=20, order=order, axis=axis)
                # Eleven pixels: two rows and three pixels.
                self.assertEqual(layout.shape(11 * channels), shape)
                raw = np.arange(11 * channels, dtype=np.uint8)
                array = layout.array(raw)
                self.assertEqual(array.shape, shape)
                np.testing.assert_array_equal(array.reshape(-1), raw[: array.size])

    def test_short_packed_image_has_whole_rows(self) -> None:
        axis = {"kind": "pixels", "width": 4, "height": 5}
        layout = daq.Layout("uint12p", channels=3, points=20, axis=axis)
        # Ten pixels of 3 × 12 bits.
        self.assertEqual(layout.values(np.zeros(45, np.uint8)).shape, (2, 4, 3))
