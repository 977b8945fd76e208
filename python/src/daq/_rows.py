"""Arrays that are stored in several pieces, such as one file per segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ._samples import Array


class Rows:
    """An array whose first dimension is divided into pieces, which are usually memory-mapped files.

    It has `shape`, `dtype` and `len()`, and is indexed as a NumPy array: rows by an integer, a slice, a list of integers or a
    mask, and other dimensions also by these, but not both by lists. Only the rows that an index selects are read. A selection
    inside one piece is a view; a selection from several pieces is a copy. `numpy.asarray(rows)` reads all rows.
    """

    def __init__(self, pieces: Sequence[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.pieces = [piece for piece in pieces if len(piece)]
        self._starts = np.cumsum([0] + [len(piece) for piece in self.pieces])
        #: Shape of the whole array.
        self.shape = (int(self._starts[-1]), *shape)
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        for piece in self.pieces:
            yield from piece

    def __getitem__(self, index: Any) -> Array:
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        if first is Ellipsis or first is None or (isinstance(index, tuple) and not index):
            return np.asarray(np.asarray(self)[index])
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            return self._row(int(first))[rest] if rest else self._row(int(first))
        if isinstance(first, slice):
            rows = self._slice(first)
        else:
            if any(isinstance(other, (list, tuple, np.ndarray)) for other in rest):
                raise IndexError("rows and another dimension cannot both be selected by lists; select the rows first")
            rows = self._select(np.asarray(first))
        return np.asarray(rows[(slice(None), *rest)])

    def _row(self, row: int) -> Array:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} rows")
        row %= len(self)
        piece = int(np.searchsorted(self._starts, row, side="right")) - 1
        return np.asarray(self.pieces[piece][row - self._starts[piece]])

    def _slice(self, rows: slice) -> Array:
        start, stop, step = rows.indices(len(self))
        if step < 0:
            return self._select(np.arange(start, stop, step))
        parts = []
        for piece, begin in zip(self.pieces, self._starts.tolist()):
            # The first selected row that is not before this piece.
            first = start if begin <= start else start + -(-(begin - start) // step) * step
            last = min(stop, begin + len(piece))
            if first < last:
                parts.append(piece[first - begin : last - begin : step])
        return self._join(parts)

    def _select(self, rows: Array) -> Array:
        if rows.dtype == np.bool_:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {rows.shape} for {len(self)} rows")
            rows = np.flatnonzero(rows)
        elif rows.dtype.kind not in "iu" and rows.size:
            raise IndexError(f"rows are selected by integers, slices or a mask, not by {rows.dtype} values")
        elif rows.ndim != 1:
            raise IndexError(f"rows are selected by a list of integers, not by an array of {rows.ndim} dimensions")
        return self._join([self._row(int(row))[np.newaxis] for row in rows])

    def _join(self, parts: list[Array]) -> Array:
        if len(parts) == 1:
            return np.asarray(parts[0])
        return np.concatenate(parts) if parts else np.empty((0, *self.shape[1:]), self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows = self._join(list(self.pieces))
        if copy is False and len(self.pieces) > 1:
            raise ValueError("rows of several files cannot become one array without a copy")
        return np.array(rows, dtype=dtype) if copy else np.asarray(rows, dtype=dtype)

    def __repr__(self) -> str:
        return f"<Rows {self.dtype} {self.shape} in {len(self.pieces)} pieces>"
