"""Recordings as datasets of xarray."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from ._rows import Rows

if TYPE_CHECKING:
    from ._recording import Recording


def dataset(recording: Recording) -> xarray.Dataset:
    """Return a recording as a dataset with one row per frame."""
    layout = recording.layout
    dimensions = ["frame", *layout.dimensions]
    if recording.frames.ndim > len(dimensions):
        dimensions.append("part")
    coordinates: dict[str, Any] = {
        "time": ("frame", recording.time),
        "number": ("frame", recording.number),
        "epoch": ("frame", recording.epoch),
        "run": ("frame", recording.run),
    }
    axis = layout.axis
    if axis.get("kind") == "frequency" and "start" in axis and "step" in axis:
        frequency = axis["start"] + np.arange(layout.points) * axis["step"]
        coordinates["frequency"] = ("point", frequency, {"units": "Hz"})
    if axis.get("kind") == "fields" and len(axis.get("names", ())) == layout.points:
        coordinates["point"] = ("point", list(axis["names"]))
    variables: dict[str, Any] = {
        "frames": (dimensions, _lazy(recording.frames)),
        "clock": ("frame", recording.clock),
        "flags": ("frame", recording.flags),
        "length": ("frame", recording.length, {"units": "byte"}),
        "missing": ("frame", recording.missing),
    }
    if recording.present is not None:
        variables["present"] = (("frame", "packet"), recording.present)
    for name, column in recording.kept.items():
        variables[name] = ("frame", column.filled(0))
        if np.ma.getmaskarray(column).any():
            variables[f"has_{name}"] = ("frame", ~np.ma.getmaskarray(column))
    rates = {"sample_rate": layout.sample_rate, "frame_rate": layout.frame_rate}
    attributes = {name: rate for name, rate in rates.items() if rate is not None}
    return xarray.Dataset(variables, coordinates, {**attributes, "path": str(recording.path)})


def _lazy(rows: Rows) -> Any:
    # Means of float16 numbers are sums of float16 numbers in xarray, which are wrong after a few thousand numbers.
    is_half = rows.dtype.kind == "f" and rows.dtype.itemsize == 2
    if rows.pieces and (len(rows.pieces) > 1 or is_half) and importlib.util.find_spec("dask"):
        import dask.array  # noqa: PLC0415 - dask is optional

        array = dask.array.concatenate([dask.array.from_array(piece, chunks=piece.shape) for piece in rows.pieces])
        return array.astype(np.float32) if is_half else array
    array = rows.pieces[0] if len(rows.pieces) == 1 else np.asarray(rows)
    return array.astype(np.float32) if is_half else array
