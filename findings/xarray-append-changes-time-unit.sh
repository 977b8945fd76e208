#!/usr/bin/env bash
# xarray 2026.9.0, zarr 3.1.6: appended times are stored in another unit than the one that the store states
#
# Guess:   to_zarr(append_dim="time") stores the new times in the unit of the store, or raises an error if that is
#          impossible.
# Instead: a first append of one frame chooses "days since <its time>". The next frames, 1 s and 2 s later, do not fit into
#          whole days. xarray warns that it uses seconds instead, and appends 1 and 2, but the attribute of the store still
#          says days. The frames are read one day and two days after the first. With a first append of frames 1 s apart and
#          a frame at 2.5 s, the unit is milliseconds, and the frame is read 41 min 40 s after the first.
# Matters: measurements are appended while they arrive, and the first batch decides the unit. The warning reads as if
#          xarray had solved the problem. An explicit encoding of the first write avoids it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need xarray==2026.9.0 zarr==3.1.6 numpy==2.4.6
check <<'END'
import warnings

import numpy as np
import xarray as xr
import zarr

START = np.datetime64("2026-01-01T00:00:05.25", "ns")


def write(path, seconds, **options):
    times = START + (np.array(seconds) * 1e9).astype("m8[ns]")
    xr.Dataset(coords={"time": times}).to_zarr(path, consolidated=False, **options)


def seconds_read(path):
    with xr.open_zarr(path, consolidated=False) as dataset:
        return ((dataset.time.values - START) / np.timedelta64(1, "s")).tolist()


def append(path, first, second, **options):
    write(path, first, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write(path, second, append_dim="time")
    stored = zarr.open_group(path)["time"]
    read = seconds_read(path)
    print(stored.attrs["units"], stored[:], "written", first + second, "read", read, "warned", bool(caught))
    return read, any("Serializing with units" in str(warning.message) for warning in caught)


assert append("one.zarr", [0], [1, 2]) == ([0, 86400, 172800], True)
assert append("two.zarr", [0, 1], [2.5]) == ([0, 1, 2500], True)
nanoseconds = {"time": {"units": "nanoseconds since 1970-01-01", "dtype": "int64"}}
assert append("explicit.zarr", [0], [1, 2.5], encoding=nanoseconds) == ([0, 1, 2.5], False)
END
