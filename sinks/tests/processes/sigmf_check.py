"""Opens recordings with the `sigmf` package, validates them, and writes their samples as float32 beside them.

Usage: sigmf_check.py META...

Prints one JSON object per recording, one per line. Every warning is an error.
"""

import json
import sys
import warnings

import numpy as np
import sigmf
from sigmf import sigmffile, validate

warnings.simplefilter("error")

for path in sys.argv[1:]:
    recording = sigmffile.fromfile(path, autoscale=False)
    recording.validate()
    samples = recording.read_samples()
    np.ascontiguousarray(samples).view(np.float32).tofile(path + ".f32")
    captures = recording.get_captures()
    parts = [len(recording.read_samples_in_capture(i)) for i in range(len(captures))]
    print(
        json.dumps(
            {
                "samples": recording.sample_count,
                "shape": list(samples.shape),
                "captures": captures,
                "annotations": recording.get_annotations(),
                "parts": parts,
                "global": recording.get_global_info(),
            }
        )
    )

try:
    validate.main(tuple(sys.argv[1:]))
except SystemExit as end:
    sys.exit(end.code)
