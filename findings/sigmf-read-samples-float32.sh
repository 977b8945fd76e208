#!/usr/bin/env bash
# sigmf 1.14.0: read_samples() converts every type to float32, also with autoscale=False
#
# Guess:   autoscale=False returns the samples as they are stored. The documentation says that it disables the scaling of
#          integers to -1…1.
# Instead: read_samples() and read_samples_in_capture() return float32 for rf64, ri32 and ru32, and complex64 for cf64.
#          Slices of the object, such as recording[:], keep the stored type: the same recording has two values for the same
#          sample, 16777216.0 and 16777217. But slices of ci32 are complex64 too, so neither call returns its samples
#          exactly, and recording[0] raises an IndexError.
# Matters: counters above 2^24, integrated spectra, and statistics in float64 lose digits without a warning.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need SigMF==1.14.0 numpy==2.4.6
check <<'END'
import numpy as np
import sigmf

for datatype, stored in {
    "rf64_le": 1 + np.arange(8) * 1e-10,
    "ri32_le": 2**24 + np.arange(8, dtype="<i4"),
    "ru32_le": 2**32 - 8 + np.arange(8, dtype="<u4"),
    "cf64_le": 1 + np.arange(8) * 1e-10 + 0j,
    "ci32_le": 2**24 + np.arange(8, dtype="<i4"),  # real and imaginary parts in turn
}.items():
    stored.tofile(f"{datatype}.sigmf-data")
    meta = sigmf.SigMFFile(global_info={"core:datatype": datatype, "core:sample_rate": 1e6, "core:version": "1.2.0"})
    meta.set_data_file(f"{datatype}.sigmf-data")
    meta.add_capture(0)
    meta.tofile(f"{datatype}.sigmf-meta")

    recording = sigmf.fromfile(f"{datatype}.sigmf-meta", autoscale=False)
    read, capture, part = recording.read_samples(), recording.read_samples_in_capture(0), recording[:]
    print(datatype, "read_samples", read.dtype, read[1], "slice", part.dtype, part[1])
    single = np.complex64 if datatype[0] == "c" else np.float32
    assert read.dtype == capture.dtype == single
    if datatype == "ci32_le":
        assert part.dtype == single and part[0] == 2**24 * (1 + 1j) != stored[0] + 1j * stored[1]
        try:
            recording[0]
            raise SystemExit("recording[0] works")
        except IndexError:
            pass
    else:
        assert not np.array_equal(read.astype(complex), stored)
        assert part.dtype == stored.dtype and np.array_equal(part, stored)
END
