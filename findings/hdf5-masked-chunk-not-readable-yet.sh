#!/usr/bin/env bash
# h5py 3.16.0 (HDF5 2.0.0): the process that wrote a chunk with a filter mask cannot read this chunk
#
# Guess:   write_direct_chunk(..., filter_mask=1) stores a chunk without its filter, and the chunk is readable at once.
# Instead: HDF5 remembers the place of the last chunk, without its mask, and applies the filter when it reads it. With gzip
#          the read fails ("filter returned failure during read"), also after flush and refresh. With scaleoffset the read
#          succeeds, and returns zeros instead of 1 to 4. All other chunks are right, and so is a file that is opened
#          again. With gzip, the chunk is readable after a read of another chunk; with scaleoffset the zeros of the first
#          read stay in the cache.
# Matters: a program stores chunks that compression would not make smaller with a mask, and shows the newest frame from the
#          same file. It sees zeros or an error for a frame that is stored correctly.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need h5py==3.16.0 numpy==2.4.6
check <<'END'
import h5py
import numpy as np

frame = np.arange(1, 5, dtype="i4")


def read(dataset, part):
    try:
        return dataset[part].tolist()
    except OSError as error:
        return str(error)


assert h5py.version.hdf5_version == "2.0.0", h5py.version.hdf5_version
first, last = slice(0, 4), slice(4, 8)
for name, filters, wrong in (("gzip", {"compression": "gzip"}, None), ("scaleoffset", {"scaleoffset": 0}, [0, 0, 0, 0])):
    with h5py.File(f"{name}.h5", "w") as file:
        dataset = file.create_dataset("frames", (8,), "i4", chunks=(4,), **filters)
        for offset in 0, 4:
            dataset.id.write_direct_chunk((offset,), frame.tobytes(), filter_mask=1)
        assert dataset.id.get_chunk_info(1).filter_mask == 1
        dataset.flush()
        dataset.refresh()
        results = read(dataset, last), read(dataset, first), read(dataset, last)
    with h5py.File(f"{name}.h5") as file:
        again = read(file["frames"], last)
    print(f"{name}: last {results[0]}, first {results[1]}, last {results[2]}, opened again {again}")
    assert results[0] == wrong if wrong else "filter returned failure" in results[0]
    assert results[1] == again == frame.tolist()
    assert results[2] == (wrong or frame.tolist())
END
