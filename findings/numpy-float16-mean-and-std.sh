#!/usr/bin/env bash
# numpy 2.4.6, xarray 2026.9.0: float16 means are right in np.mean, but std, nanmean and xarray overflow or stop counting
#
# Guess:   np.mean adds float16 in float32, as its documentation says, so np.std, np.nanmean and DataArray.mean do so too.
# Instead: the other functions add in float16. A sum of ones stops at 2048, because 2049 is not a float16. For 50000 frames
#          of 1 and 2 (mean 1.5, standard deviation 0.5) along the first axis, np.std, np.nanmean and DataArray.mean return
#          inf. For 50000 frames of 1.5, np.mean returns 1.5, DataArray.mean 0.0819, and np.std 0.4048 instead of 0.
#          DataArray.mean(skipna=False) is right, DataArray.std(skipna=False) is not.
# Matters: float16 spectra are averaged over thousands of frames, and 0.0819 looks like a measurement.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need numpy==2.4.6 xarray==2026.9.0
check <<'END'
import warnings

import numpy as np
import xarray as xr

warnings.simplefilter("ignore")  # an overflow warns, a wrong finite value does not
constant = np.full((50000, 4), 1.5, "f2")
array = xr.DataArray(constant, dims=("frame", "channel"))
results = {
    "np.mean": constant.mean(0),
    "np.nanmean": np.nanmean(constant, 0),
    "np.std": constant.std(0),
    "DataArray.mean": array.mean("frame").values,
    "DataArray.mean(skipna=False)": array.mean("frame", skipna=False).values,
    "DataArray.std(skipna=False)": array.std("frame", skipna=False).values,
}
for name, value in results.items():
    print(f"{name:30}", value[0])
assert (results["np.mean"] == 1.5).all() and (results["DataArray.mean(skipna=False)"] == 1.5).all()
assert (results["np.nanmean"] < 0.1).all() and (results["DataArray.mean"] < 0.1).all()
for name in "np.std", "DataArray.std(skipna=False)":
    assert (abs(results[name] - 0.4048) < 0.001).all()

varying = np.tile(np.array([[1], [2]], "f2"), (25000, 1))
assert varying.mean(0) == 1.5
assert np.isinf(varying.std(0)) and np.isinf(np.nanmean(varying, 0))
assert np.isinf(xr.DataArray(varying, dims=("frame", "channel")).mean("frame"))
END
