#!/usr/bin/env bash
# zarrs 0.2.3 with zarr 3.1.6: a part of a big-endian complex chunk has its real and imaginary parts exchanged
#
# Guess:   the pipeline of zarrs is a faster implementation of the same codecs, so it reads the same values.
# Instead: it reads whole chunks of BytesCodec(endian="big") correctly. If a slice covers only a part of a chunk, 1+101j
#          becomes 101+1j, without an error. array[0:4] (one chunk) is right, array[0:3] is not. With shards, every slice
#          is exchanged that is smaller than the shard, also one of whole inner chunks. Little-endian arrays are right.
# Matters: samples of network instruments are big-endian. A test that compares whole arrays passes, and then each analysis
#          of a part sees a mirrored spectrum.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need zarrs==0.2.3 zarr==3.1.6 numpy==2.4.6
check <<'END'
import numpy as np
import zarr
import zarrs  # registers its pipeline

samples = (np.arange(8) + 1j * np.arange(100, 108)).astype("c8")
exchanged = samples.imag + 1j * samples.real
parts = [slice(0, 8), slice(0, 4), slice(0, 3), slice(2, 6)]
for endian, shards, wrong in (
    ("little", None, [False, False, False, False]),
    ("big", None, [False, False, True, True]),
    ("big", (8,), [False, True, True, True]),
):
    array = zarr.create_array(
        "array.zarr", overwrite=True, shape=(8,), chunks=(4,), shards=shards, dtype="c8",
        serializer=zarr.codecs.BytesCodec(endian=endian),
    )
    array[:] = samples
    assert all(np.array_equal(zarr.open_array("array.zarr")[part], samples[part]) for part in parts)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        array = zarr.open_array("array.zarr")
        for part, exchange in zip(parts, wrong):
            values = array[part]
            print(endian, "shards", shards, f"[{part.start}:{part.stop}]", values[:2])
            assert np.array_equal(values, (exchanged if exchange else samples)[part])
END
