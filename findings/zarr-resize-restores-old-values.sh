#!/usr/bin/env bash
# zarr 3.1.6, tensorstore 0.1.86, blosc2 4.14.1, h5py 3.16.0: an array that shrinks and grows again shows the old values
#
# Guess:   elements that a resize cuts off are gone. After the array grows again they are the fill value.
# Instead: only whole chunks outside of the new shape are removed. The values in a chunk that crosses the new end return:
#          10 elements in chunks of 4, resized to 5 and back, read 0 to 7, -1, -1. In a shard of 8, a resize to 1 and back
#          returns all 7 values. tensorstore and blosc2 do the same; blosc2 has no fill value here. HDF5 overwrites the
#          rest of the chunk: h5py reads 0 to 4 and then -1.
# Matters: a file that is truncated after a broken run and extended for the next one contains frames of the broken run
#          where the next run has a gap.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need zarr==3.1.6 tensorstore==0.1.86 blosc2==4.14.1 h5py==3.16.0 numpy==2.4.6
check <<'END'
import blosc2
import h5py
import numpy as np
import tensorstore
import zarr

values = np.arange(10, dtype="i4")


def create(path, **chunks):
    array = zarr.create_array(path, shape=(10,), dtype="i4", fill_value=-1, **chunks)
    array[:] = values
    return array


chunked = create("chunked.zarr", chunks=(4,))
chunked.resize((5,))
chunked.resize((10,))
sharded = create("sharded.zarr", chunks=(2,), shards=(8,))
sharded.resize((1,))
sharded.resize((10,))
create("tensorstore.zarr", chunks=(4,))
store = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": "tensorstore.zarr"}}).result()
store = store.resize(exclusive_max=[5]).result()
store = store.resize(exclusive_max=[10]).result()
blosc = blosc2.asarray(values, chunks=(4,), blocks=(2,))
blosc.resize((5,))
blosc.resize((10,))
with h5py.File("array.h5", "w") as file:
    hdf5 = file.create_dataset("array", data=values, chunks=(4,), maxshape=(None,), fillvalue=-1)
    hdf5.resize((5,))
    hdf5.resize((10,))
    hdf5 = hdf5[:]

for name, got, expected in (
    ("zarr", chunked[:], [0, 1, 2, 3, 4, 5, 6, 7, -1, -1]),
    ("zarr with shards", sharded[:], [0, 1, 2, 3, 4, 5, 6, 7, -1, -1]),
    ("tensorstore", store.read().result(), [0, 1, 2, 3, 4, 5, 6, 7, -1, -1]),
    ("blosc2", blosc[:], [0, 1, 2, 3, 4, 5, 6, 7, 0, 0]),
    ("h5py", hdf5, [0, 1, 2, 3, 4, -1, -1, -1, -1, -1]),
):
    print(f"{name:18}", got)
    assert got.tolist() == expected
END
