"""Opens stores with the `zarr` package and writes every array's values, C order, beside them.

Usage: zarr_check.py STORE...   prints one JSON object a line; every warning is an error.
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
        values.tofile(f"{path}.{name}.bin")
        arrays[name] = {
            "dtype": values.dtype.str,
            "shape": list(values.shape),
            "chunks": list(array.chunks),
            "dimensions": list(array.metadata.dimension_names),
            "attributes": dict(array.attrs),
        }
    print(json.dumps({"arrays": arrays, "attributes": dict(group.attrs)}))
