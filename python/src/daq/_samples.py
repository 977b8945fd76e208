"""Sample types, and the layout of a frame as NumPy type and shape."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _arguments

Array = npt.NDArray[Any]

# Types of whole bytes, by their names in the configuration. NumPy has no bfloat16, so its bits are read as integers.
_WHOLE = {
    "int8": "<i1",
    "uint8": "<u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "float16": "<f2",
    "bfloat16": "<u2",
    "float32": "<f4",
    "float64": "<f8",
    "int16be": ">i2",
    "uint16be": ">u2",
    "int32be": ">i4",
    "uint32be": ">u4",
    "float32be": ">f4",
}
_COMPLEX = {"float32": "<c8", "float64": "<c16", "float32be": ">c8"}
_PACKED = re.compile(r"(u?)int(4|10|12)p(msb)?")
# Packed type: numbers and bytes of the smallest group without a shared byte.
_GROUPS = {4: (2, 1), 10: (4, 5), 12: (2, 3)}


def is_packed(sample_type: str) -> bool:
    """Return whether numbers of this type share bytes, such as `uint12p`."""
    return _PACKED.fullmatch(sample_type) is not None


def number_bits(sample_type: str) -> int:
    """Return the size of one number in bits. Raises ValueError for an unknown type."""
    packed = _PACKED.fullmatch(sample_type)
    if packed:
        return int(packed[2])
    return _whole(sample_type).itemsize * 8


def _whole(sample_type: str) -> np.dtype[Any]:
    if sample_type not in _WHOLE:
        raise ValueError(f"unknown sample type {sample_type!r}; known are {', '.join(_WHOLE)} and packed types")
    return np.dtype(_WHOLE[sample_type])


def unpack(data: npt.ArrayLike, sample_type: str) -> Array:
    """Return the numbers of packed bytes as a new array of 8-bit or 16-bit integers.

    `data` are bytes of a packed type such as `uint12p` or `int4pmsb`: whole groups of numbers, so multiples of 5 bytes for
    10 bits and of 3 bytes for 12 bits. Raises ValueError otherwise, and TypeError if `data` are no bytes.
    """
    _arguments.text("sample_type", sample_type)
    packed = _PACKED.fullmatch(sample_type)
    if not packed:
        raise ValueError(f"{sample_type!r} is not a packed type such as 'uint12p'")
    signed, bits, msb_first = packed[1] == "", int(packed[2]), packed[3] is not None
    numbers, size = _GROUPS[bits]
    raw = _bytes(data)
    if raw.size % size:
        raise ValueError(f"{raw.size} bytes of {sample_type} are not a multiple of {size} bytes")
    groups = raw.reshape(-1, size)
    word = np.zeros(len(groups), np.uint64)
    for i in range(size):
        shift = size - 1 - i if msb_first else i
        word |= groups[:, i].astype(np.uint64) << np.uint64(8 * shift)
    unsigned = np.uint8 if bits <= 8 else np.uint16
    values = np.empty((len(groups), numbers), unsigned)
    for j in range(numbers):
        shift = numbers - 1 - j if msb_first else j
        values[:, j] = (word >> np.uint64(bits * shift)) & np.uint64((1 << bits) - 1)
    flat = values.reshape(-1)
    if not signed:
        return flat
    half = 1 << (bits - 1)
    return (flat.astype(np.int16) ^ half) - half if bits > 8 else ((flat ^ half).astype(np.int8) - np.int8(half))


def _bytes(data: npt.ArrayLike) -> Array:
    """Return a flat array of bytes."""
    array = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray)) else np.asarray(data)
    if array.dtype != np.uint8:
        if array.dtype.kind not in "iu":
            raise TypeError(f"`data` must be bytes, not {array.dtype} values")
        if array.size and not 0 <= int(array.min()) <= int(array.max()) <= 255:
            raise ValueError(f"`data` must be bytes, not values from {array.min()} to {array.max()}")
    return np.ascontiguousarray(array, np.uint8).reshape(-1)


def widen_bfloat16(bits: Array) -> Array:
    """Return float32 numbers for the bits of bfloat16 numbers, which are the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, repr=False)
class Layout:
    """The meaning of a frame's bytes.

    Interleaved frames have the shape `(points, channels)`, planar frames `(channels, points)`. Images have `(y, x)` instead of
    points, or `(module, y, x)`, and no dimension for a single channel. Pairs of float32 and float64
    are complex numbers. Pairs of other types have a last dimension of 2: real and imaginary part. Packed types stay bytes;
    `values` unpacks them.
    """

    #: Type of each number, such as `int16` or `uint12p`.
    sample_type: str
    #: Whether a sample is a pair of numbers: real and imaginary part.
    is_complex: bool = False
    channels: int = 1
    #: Number of points per channel in a whole frame.
    points: int = 0
    #: `interleaved` or `planar`.
    order: str = "interleaved"
    #: The physical axis of the points: `kind` is `time`, `frequency`, `fields` or `pixels`.
    axis: Mapping[str, Any] = field(default_factory=dict)
    #: Points per second and channel; None if unknown, or if the axis is not time.
    sample_rate: float | None = None
    #: Frames per second; None if unknown.
    frame_rate: float | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements of `array`."""
        if is_packed(self.sample_type):
            return np.dtype(np.uint8)
        if self.is_complex and self.sample_type in _COMPLEX:
            return np.dtype(_COMPLEX[self.sample_type])
        return _whole(self.sample_type)

    @property
    def point_bits(self) -> int:
        """Size of one point (sample of all channels) in bits."""
        return number_bits(self.sample_type) * (2 if self.is_complex else 1) * self.channels

    @property
    def number_bits(self) -> int:
        """Size of one number, or of one pair of numbers if it is complex, in bits."""
        return self.point_bits // self.channels

    @property
    def sample_bits(self) -> int:
        """Size of one sample in bits: one point of every channel, or of one channel if the order is planar."""
        return self.point_bits // (self.channels if self.order == "planar" else 1)

    @property
    def frame_bytes(self) -> int:
        """Size of a whole frame in bytes."""
        return -(-self.point_bits * self.points // 8)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the dimensions of `values`."""
        points = ("point",)
        if self._image:
            points = ("module", "y", "x") if len(self._image) > 2 else ("y", "x")
            if self.channels == 1:
                return points
        return ("channel", *points) if self.order == "planar" else (*points, "channel")

    @property
    def _image(self) -> tuple[int, ...]:
        """Numbers of modules, rows and columns of an image, or of rows and columns; empty if frames are not images."""
        if self.axis.get("kind") != "pixels":
            return ()
        modules = len(self.axis.get("module_x", ()))
        size = (int(self.axis["height"]), int(self.axis["width"]))
        return (modules, *size) if modules else size

    def shape(self, length: int | None = None) -> tuple[int, ...]:
        """Return the shape of the array of a frame of `length` bytes; default: of a whole frame."""
        if length is None:
            length = self.frame_bytes
        if is_packed(self.sample_type):
            return (length,)
        shape = self._point_shape(length * 8 // self.point_bits)
        return (*shape, 2) if self._has_parts else shape

    @property
    def _has_parts(self) -> bool:
        return self.is_complex and self.sample_type not in _COMPLEX

    def _point_shape(self, points: int) -> tuple[int, ...]:
        image = self._image
        if image and (self.channels == 1 or self.order == "interleaved"):
            # A shorter frame has fewer whole rows, or fewer whole modules.
            whole = (points // math.prod(image[1:]), *image[1:])
            return whole if self.channels == 1 else (*whole, self.channels)
        if image and points == self.points:
            return (self.channels, *image)
        return (self.channels, points) if self.order == "planar" else (points, self.channels)

    def __repr__(self) -> str:
        kind = ("complex " if self.is_complex else "") + self.sample_type
        axis = self.axis.get("kind", "time")
        return f"<Layout {kind}, {self.order}, {self.channels} channels, {self.points} points over {axis}>"

    def array(self, raw: Array) -> Array:
        """Return a view of the bytes `raw` of a frame with the type and the shape of its samples."""
        shape = self.shape(raw.size)
        used = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        return raw[:used].view(self.dtype).reshape(shape)

    def assemble(self, images: npt.ArrayLike, fill: float = 0) -> Array:
        """Return whole images, in which each module is at its place and rotated.

        `images` have the shape of `values`, with any dimensions before it, such as one for frames. Pixels between the modules are
        `fill`. Raises ValueError if frames have no modules, or if the shape is another one.
        """
        given, wanted = np.asarray(images), self._image
        if len(wanted) < 3:
            raise ValueError("the frames of this layout are not images of several modules")
        before = given.ndim - 3 - (self.channels > 1)
        planar = self.channels > 1 and self.order == "planar"
        first = before + planar
        if before < 0 or given.shape[first : first + 3] != wanted:
            raise ValueError(f"the modules have the shape {wanted}, but the array has {given.shape}")
        modules = np.moveaxis(given, first, 0)
        turned = [
            np.rot90(module, -int(rotate) // 90, axes=(first, first + 1))
            for module, rotate in zip(modules, self.axis["module_rotate"])
        ]
        places = list(zip(self.axis["module_y"], self.axis["module_x"]))
        ends = [(y + module.shape[first], x + module.shape[first + 1]) for module, (y, x) in zip(turned, places)]
        size = tuple(max(end) for end in zip(*ends))
        whole = np.full((*given.shape[:first], *size, *given.shape[first + 3 :]), fill, given.dtype)
        for module, (y, x), (bottom, right) in zip(turned, places, ends):
            whole[(*[slice(None)] * first, slice(y, bottom), slice(x, right))] = module
        return whole

    def values(self, array: Array) -> Array:
        """Return the numbers of `array` in a type that NumPy calculates with.

        Packed numbers are unpacked, bfloat16 becomes float32, pairs of integers become complex64 (complex128 if they have 32 bits
        or more), and big-endian numbers get the byte order of this machine. `array` may have
        leading dimensions, such as one for frames. Returns a view if nothing must be converted.
        """
        if is_packed(self.sample_type):
            parts = 2 if self.is_complex else 1
            rows = array.reshape(-1, array.shape[-1])
            points = array.shape[-1] * 8 // self.point_bits
            shape = self._point_shape(points)
            used = math.prod(shape) * parts
            numbers = np.stack([unpack(row, self.sample_type)[:used] for row in rows]) if len(rows) else rows
            array = numbers.reshape((*array.shape[:-1], *shape, *((2,) if self.is_complex else ())))
        elif self.sample_type == "bfloat16":
            array = widen_bfloat16(array)
        if self._has_parts:
            # A float32 has 24 significant bits.
            is_exact = array.dtype.kind == "f" or array.dtype.itemsize < 4
            part, whole = (np.float32, np.complex64) if is_exact else (np.float64, np.complex128)
            return np.ascontiguousarray(array, dtype=part).view(whole)[..., 0]
        return array.astype(array.dtype.newbyteorder("="), copy=False)
