"""DLPack capsules, which pass arrays to torch, CuPy, JAX and NumPy without a copy.

The structures are those of https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

#: Device types of DLPack.
CPU, CUDA = 1, 2
_READ_ONLY = 1
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)


class _Device(ctypes.Structure):
    _fields_ = (("type", c_int32), ("id", c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("dimensions", c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _DELETER))


class _Version(ctypes.Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("version", _Version),
        ("context", c_void_p),
        ("deleter", _DELETER),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, [c_void_p, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c_void_p, [c_void_p, ctypes.c_char_p]

# What the exported tensors need, by the address of the structure, until the consumer deletes them.
_exported: dict[int, tuple[Any, ...]] = {}


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    # A consumer renames the capsule and deletes the tensor itself. Otherwise it was not used.
    for name in _NAMES.values():
        if _is_valid(capsule, name):
            _exported.pop(_get_pointer(capsule, name), None)


_deleter = _DELETER(_delete)
_destructor = _DESTRUCTOR(_destroy)


def capsule(
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
    owner: object,
    *,
    versioned: bool,
    is_bfloat16: bool = False,
) -> Any:
    """Return a capsule for a read-only array in C order at `address`. `owner` lives until the consumer deletes the array.

    Only versioned capsules (DLPack 1.0) state that the array is read-only.
    """
    sizes = (c_int64 * len(shape))(*shape)
    # Strides in elements, in C order.
    steps = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
    strides = (c_int64 * len(shape))(*steps)
    code = _BFLOAT if is_bfloat16 else _CODES[dtype.kind]
    tensor = _Tensor(address, _Device(*device), len(shape), _DataType(code, dtype.itemsize * 8, 1), sizes, strides, 0)
    managed: _Managed | _ManagedVersioned
    if versioned:
        managed = _ManagedVersioned(_Version(1, 0), None, _deleter, _READ_ONLY, tensor)
    else:
        managed = _Managed(tensor, None, _deleter)
    key = ctypes.addressof(managed)
    _exported[key] = (managed, sizes, strides, owner)
    return _new(key, _NAMES[versioned], ctypes.cast(_destructor, c_void_p))
