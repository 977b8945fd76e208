"""Reads kept fields of a Zarr store with PyPI's zarr, or of a recording with PyPI's sigmf, and prints them as JSON."""

import json
import sys

path = sys.argv[1]
if path.endswith(".zarr"):
    import zarr

    group = zarr.open_group(path, mode="r")
    names = group["kept"].attrs["flag_meanings"].split()
    kept = {name: group[name][:].tolist() for name in names}
    kept["kept"] = group["kept"][:].tolist()
    kept["sequence"] = group["sequence"][:].tolist()
    kept["type"] = [str(group[name].dtype) for name in names]
else:
    import sigmf

    recording = sigmf.sigmffile.fromfile(path)
    recording.validate()
    kept = [
        [note["core:sample_start"], note["core:sample_count"], note["daq:kept"]]
        for note in recording.get_annotations()
        if note.get("core:label") == "kept"
    ]
print(json.dumps(kept))
