"""The CUDA driver, as far as rings in GPU memory need it. Loaded at run time; nothing of the CUDA toolkit is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from ._errors import AttachError
from ._samples import Array

_POSIX_FILE_DESCRIPTOR = 1
_LOCATION_DEVICE = 1
_ACCESS_READ = 1
_EVENT_DISABLE_TIMING = 2


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _AccessDescriptor(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


class Driver:
    """The functions of libcuda. Each call checks the result and raises AttachError with the driver's message."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise AttachError(f"cannot load libcuda.so.1: {error}; install the NVIDIA driver") from error
        self("cuInit", c_uint(0))

    def __call__(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver."""
        code = self.result(function, *arguments)
        if code != 0:
            name = c_char_p()
            self._library.cuGetErrorName(c_int(code), byref(name))
            raise AttachError(f"{function} failed: {(name.value or str(code).encode()).decode()}")

    def result(self, function: str, *arguments: Any) -> int:
        """Call a function of the driver and return its result, 0 for success."""
        return int(getattr(self._library, function)(*arguments))

    def device(self, uuid: str) -> int:
        """Return the number of the GPU with this UUID. Raises AttachError if this process cannot see that GPU."""
        count = c_int()
        self("cuDeviceGetCount", byref(count))
        wanted = uuid.lower().replace("gpu-", "").replace("mig-", "").replace("-", "")
        for number in range(count.value):
            device, own = c_int(), _Uuid()
            self("cuDeviceGet", byref(device), c_int(number))
            self("cuDeviceGetUuid_v2", byref(own), device)
            if bytes(own.bytes).hex() == wanted:
                return device.value
        raise AttachError(f"this process cannot see the GPU {uuid} of the ring; check CUDA_VISIBLE_DEVICES")


@lru_cache(maxsize=1)
def driver() -> Driver:
    """Return the driver, loaded at the first call. Raises AttachError if there is none."""
    return Driver()


class CudaMemory:
    """The memory of a ring on a GPU, mapped for reading into the primary context of the GPU, which CuPy and torch use.

    `fd` is the handle that the daemon sent, `uuid` that of the GPU, and `size` the size of the allocation in bytes. The
    memory stays mapped as long as this object exists.
    """

    def __init__(self, fd: int, uuid: str, size: int) -> None:
        self.cuda = driver()
        self.device = self.cuda.device(uuid)
        self._size = size
        self._context = c_void_p()
        self._address = c_ulonglong()
        self._is_mapped = False
        self.cuda("cuDevicePrimaryCtxRetain", byref(self._context), c_int(self.device))
        try:
            with self.current():
                self._map(fd)
        except AttachError:
            self.close()
            raise

    def _map(self, fd: int) -> None:
        handle = c_ulonglong()
        kind = c_int(_POSIX_FILE_DESCRIPTOR)
        self.cuda("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), kind)
        size = c_size_t(self._size)
        try:
            self.cuda("cuMemAddressReserve", byref(self._address), size, c_size_t(0), c_ulonglong(0), c_ulonglong(0))
            self.cuda("cuMemMap", self._address, size, c_size_t(0), handle, c_ulonglong(0))
            self._is_mapped = True
        finally:
            # The mapping keeps the memory.
            self.cuda("cuMemRelease", handle)
        access = _AccessDescriptor(_Location(_LOCATION_DEVICE, self.device), _ACCESS_READ)
        self.cuda("cuMemSetAccess", self._address, size, byref(access), c_size_t(1))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the primary context current in this thread."""
        self.cuda("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.cuda("cuCtxPopCurrent_v2", byref(c_void_p()))

    @property
    def address(self) -> int:
        """Device address of the first slot."""
        return self._address.value

    def read(self, offset: int, length: int) -> Array:
        """Return a copy of bytes in host memory."""
        copy = np.empty(length, np.uint8)
        if length:
            with self.current():
                target, source = c_void_p(copy.ctypes.data), c_ulonglong(self.address + offset)
                self.cuda("cuMemcpyDtoH_v2", target, source, c_size_t(length))
        return copy

    def close(self) -> None:
        """Unmap the memory. No array may refer to it any more."""
        if self._context.value is None:
            return
        with self.current():
            if self._is_mapped:
                self.cuda.result("cuMemUnmap", self._address, c_size_t(self._size))
            if self._address.value:
                self.cuda.result("cuMemAddressFree", self._address, c_size_t(self._size))
        self.cuda.result("cuDevicePrimaryCtxRelease_v2", c_int(self.device))
        self._context = c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_context", c_void_p()).value is not None:
            self.close()


class Mark:
    """A position in CUDA streams: everything that was submitted to them before."""

    def __init__(self, memory: CudaMemory, streams: set[int]) -> None:
        self._memory = memory
        self._events: list[c_void_p] = []
        with memory.current():
            for stream in streams:
                event = c_void_p()
                memory.cuda("cuEventCreate", byref(event), c_uint(_EVENT_DISABLE_TIMING))
                self._events.append(event)
                memory.cuda("cuEventRecord", event, c_void_p(stream))

    def is_reached(self) -> bool:
        """Return whether the GPU has finished everything before the position. After an error of the GPU, this is unknown,
        so the result is False."""
        with self._memory.current():
            return all(self._memory.cuda.result("cuEventQuery", event) == 0 for event in self._events)

    def wait(self) -> None:
        """Wait until the GPU has finished everything before the position."""
        with self._memory.current():
            for event in self._events:
                self._memory.cuda("cuEventSynchronize", event)

    def __del__(self) -> None:
        if getattr(self, "_events", None):
            with self._memory.current():
                for event in self._events:
                    self._memory.cuda.result("cuEventDestroy_v2", event)
