"""Packets of recordings whose frames are no multiple of the packet."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import daq

FRAME = 3500


class PacketsTest(unittest.TestCase):
    """Frames of 3500 bytes in packets of 1000 bytes, of which the last has 500."""

    def record(self, directory: str, missing: tuple[int, int], **sizes: int) -> daq.Recording:
        """Write two frames, of which the second lacks `missing`, a sample and a number of samples."""
        stream: dict[str, Any] = {
            "daq:bytes": 2 * FRAME,
            "daq:frames": 2,
            "daq:frame_bytes": FRAME,
            "daq:packets_per_frame": 4,
            "daq:segment": 0,
            "daq:missing_samples": missing[1],
            "daq:missing_frames": 0,
            "daq:channels": 1,
            "daq:points": FRAME,
            "daq:order": "interleaved",
            "daq:axis": {"kind": "time", "rate": 1e6},
            **{f"daq:{name}": size for name, size in sizes.items()},
        }
        meta = {
            "global": {"core:datatype": "ri8", "core:version": "1.2.6", "core:sample_rate": 1e6, **stream},
            "captures": [{"core:sample_start": 0, "daq:frames": 2, "daq:epoch": 1, "daq:sequence": 0, "daq:clock": "none"}],
            "annotations": [
                {"core:sample_start": FRAME + missing[0], "core:sample_count": missing[1], "core:label": "missing"}
            ],
        }
        path = Path(directory)
        (path / "adc-000000.sigmf-meta").write_text(json.dumps(meta), encoding="utf-8")
        (path / "adc-000000.sigmf-data").write_bytes(bytes(2 * FRAME))
        return daq.Recording(path, "adc")

    def present(self, missing: tuple[int, int], **sizes: int) -> list[bool]:
        with tempfile.TemporaryDirectory() as directory:
            present = self.record(directory, missing, **sizes).present
            assert present is not None
            self.assertTrue(present[0].all())
            found: list[bool] = present[1].tolist()
            return found

    def test_exactly_the_missing_packets_are_marked(self) -> None:
        for packet, missing in enumerate([(0, 1000), (1000, 1000), (2000, 1000), (3000, 500)]):
            expected = [other != packet for other in range(4)]
            self.assertEqual(self.present(missing, first_bytes=1000, packet_bytes=1000, parts=1), expected)
        two = self.present((1000, 2000), first_bytes=1000, packet_bytes=1000)
        self.assertEqual(two, [True, False, False, True])

    def test_packets_of_old_recordings_are_assumed_to_have_one_size(self) -> None:
        self.assertEqual(self.present((1000, 1000)), [True, False, False, True])


if __name__ == "__main__":
    unittest.main()
