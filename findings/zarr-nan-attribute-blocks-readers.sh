#!/usr/bin/env bash
# zarr 3.1.6, tensorstore 0.1.86, zarrs 0.2.3: one NaN among the attributes makes an array unreadable elsewhere
#
# Guess:   zarr-python refuses a NaN attribute, or writes it as the string "NaN", as it does for the fill value of a float.
# Instead: it writes the bare word NaN into zarr.json, which is not JSON. tensorstore then cannot open the array at all
#          ("Invalid JSON"), although it does not interpret attributes. The pipeline of zarrs warns that the array is
#          unsupported, and leaves the array to the pipeline of zarr-python. zarr-python reads the attribute back, so a test
#          with it alone passes. A fill value of NaN in the same array is fine.
# Matters: "not measured" is often NaN: a temperature, an offset, a calibration. One such attribute makes the samples
#          unreadable for other implementations, and the recording program does not notice.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need zarr==3.1.6 tensorstore==0.1.86 zarrs==0.2.3 numpy==2.4.6
check <<'END'
import json
import math
import warnings

import tensorstore
import zarr
import zarrs  # registers its pipeline


def strict(path):
    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    with open(path) as file:
        return json.load(file, parse_constant=refuse)


def read_elsewhere(path):
    return tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result().read().result()


for name, value in ("number", 1.5), ("nan", math.nan), ("inf", math.inf):
    array = zarr.create_array(
        f"{name}.zarr", shape=4, chunks=4, dtype="f4", fill_value=math.nan, attributes={"offset": value}
    )
    array[:] = 1
    errors = []
    for reader in (lambda: strict(f"{name}.zarr/zarr.json"), lambda: read_elsewhere(f"{name}.zarr")):
        try:
            reader()
        except ValueError as error:
            errors.append(str(error))
    with (
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        read = zarr.open_array(f"{name}.zarr")
        values, offset = read[:], read.attrs["offset"]
    unsupported = [str(warning.message) for warning in caught if "unsupported" in str(warning.message)]
    print(name, "attribute", offset, [error[:50] for error in errors], [warning[:60] for warning in unsupported])
    assert (values == 1).all() and (offset == value or math.isnan(offset) and math.isnan(value))
    assert len(errors) == (0 if name == "number" else 2) and len(unsupported) == (0 if name == "number" else 1)
    assert name == "number" or "Invalid JSON" in errors[1]
END
