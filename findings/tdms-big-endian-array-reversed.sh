#!/usr/bin/env bash
# npTDMS 1.13.0: TdmsWriter stores the bytes of a big-endian array unchanged and declares them little-endian
#
# Guess:   TdmsWriter stores the values of a big-endian array, as h5py and astropy do, or refuses the array.
# Instead: 0, 1, 2 of type >i2 are read back as 0, 256, 512, and 1.5 of type >f8 as 3.13984e-319. Float16 is refused with
#          a KeyError, so types are checked, but byte orders are not.
# Matters: np.frombuffer(packet, ">i2") is the direct way from a network packet to an array. 256 times the value looks
#          like a scale, and a test with zeros or 257 passes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need npTDMS==1.13.0 numpy==2.4.6
check <<'END'
import numpy as np
from nptdms import ChannelObject, TdmsFile, TdmsWriter


def through_file(values):
    with TdmsWriter("samples.tdms") as writer:
        writer.write_segment([ChannelObject("group", "channel", values)])
    return TdmsFile.read("samples.tdms")["group"]["channel"][:]


samples = np.arange(3)
for dtype in "<i2", ">i2", "<f8", ">f8":
    print(dtype, through_file(samples.astype(dtype)))
assert through_file(samples.astype("<i2")).tolist() == [0, 1, 2]
assert through_file(samples.astype(">i2")).tolist() == [0, 256, 512]
real = np.array([1.5])
assert through_file(real.astype("<f8")) == 1.5
assert through_file(real.astype(">f8")) == real.astype(">f8").view("<f8") != 1.5
print(through_file(real.astype(">f8")))
try:
    through_file(samples.astype("f2"))
    refused = False
except KeyError:
    refused = True
assert refused
END
