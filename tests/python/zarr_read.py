"""Reads arrays of daq with PyPI's zarr, and compares them with files. Arguments: store, file, store, file, ..."""

import json
import sys

import numpy as np
import zarr

for path, file in zip(sys.argv[1::2], sys.argv[2::2]):
    group = zarr.open_group(path, mode="r")
    frames = group["frames"]
    wanted = np.fromfile(file, dtype=np.int8).reshape(frames.shape)
    read = frames[:]
    print(
        json.dumps(
            {
                "frames": int(frames.shape[0]),
                "dtype": str(read.dtype),
                "equal": bool((read == wanted).all()),
                "sequence": [int(n) for n in group["sequence"][:]],
                "present": bool(group["present"][:].all()),
                "state": group.attrs["state"],
            }
        )
    )
