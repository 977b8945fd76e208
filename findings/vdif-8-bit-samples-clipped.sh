#!/usr/bin/env bash
# baseband 4.3.0: integer samples written as 8-bit VDIF are clipped at 3.59; as 8-bit DADA they are stored unchanged
#
# Guess:   8-bit samples of -128 to 127 survive in each format of 8 bits.
# Instead: for VDIF, 1.0 is one standard deviation of noise. A byte b is read as (b - 127.5) / 35.5, so a writer limits all
#          values to ±3.59: 4, 100 and 127 become the byte 255. No warning. 0 is read back as 0.014, because no byte means
#          zero; with 4 bits the factor is 1 / 2.95, and the code 8 means zero. DADA of the same package reads
#          and writes 8-bit samples as integers.
# Matters: a converter from DADA to VDIF of a few lines destroys the samples, and a reader that compares the powers of two
#          formats is wrong by a factor of 1260.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need baseband==4.3.0 astropy==8.0.2 numpy==2.4.6
check <<'END'
import warnings

import astropy.units as u
import numpy as np
from astropy.time import Time
from baseband import dada, vdif

warnings.simplefilter("ignore")  # about tables of the Earth's rotation
samples = np.array([-128, -100, -4, -3, 0, 1, 3, 4, 100, 127], "f4")
options = {"sample_rate": 8 * u.kHz, "samples_per_frame": 800, "complex_data": False, "time": Time("2026-01-01T00:00:00")}


def vdif_of(bits):
    """Returns the samples that are read back, and the bytes after the header of the first frame."""
    with vdif.open("x.vdif", "ws", bps=bits, nchan=1, nthread=1, edv=1, station="aa", **options) as file:
        file.write(np.resize(samples, 8000))
    with vdif.open("x.vdif", "rs") as file, open("x.vdif", "rb") as raw:
        return file.read(len(samples)).ravel(), raw.read(32 + len(samples))[32:]


with dada.open("x.dada", "ws", bps=8, npol=1, nchan=1, **options) as file:
    file.write(np.resize(samples, 8000))
with dada.open("x.dada", "rs") as file:
    unchanged = file.read(len(samples)).ravel()
eight, stored = vdif_of(8)
four, _ = vdif_of(4)
print("DADA", unchanged)
print("VDIF, 8 bits", eight, list(stored))
print("VDIF, 4 bits", four)
assert np.array_equal(unchanged, samples)
assert list(stored) == [0, 0, 0, 21, 128, 163, 234, 255, 255, 255]
assert np.allclose(eight, (np.array(list(stored)) - 127.5) / 35.5)
assert eight.max() < 3.6 and 0.014 < eight[4] < 0.0141
assert four[4] == 0 and np.isclose(four[5], 3 / 2.95) and np.isclose(four.max(), 7 / 2.95)
END
