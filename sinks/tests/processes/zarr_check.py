"""Opens stores with the `zarr` package and writes the values of every array beside them, in C order.

Usage: zarr_check.py STORE...

Prints one JSON object per store, one per line. Every warning is an error.
"""

import json
import sys
import warnings

import numpy as np
import zarr

warnings.simplefilter("error")

for path in sys.argv[1:]:
    group = zarr.open_group(path, mode="r")
    arrays = {}
    for name, array in group.arrays():
        values = np.ascontiguousarray(array[...])
        # zarr returns numbers in the byte order of this machine.
        endian = getattr(array.metadata.codecs[0], "endian", None)
        if endian is not None and endian.value == "big":
            values = values.astype(values.dtype.newbyteorder(">"))
        values.tofile(f"{path}.{name}.bin")
        arrays[name] = {
            "dtype": values.dtype.str,
            "shape": list(values.shape),
            "chunks": list(array.chunks),
            "dimensions": list(array.metadata.dimension_names),
            "attributes": dict(array.attrs),
        }
    print(json.dumps({"arrays": arrays, "attributes": dict(group.attrs)}))
