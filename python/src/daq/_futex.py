"""Waits for frames, and orders loads from memory that another process writes."""

from __future__ import annotations

import ctypes
import errno
import platform
import threading
import time

_MACHINE = platform.machine()
_SYSCALLS = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT = 0
# Interval at which frames are polled where futexes cannot be used.
_POLL_INTERVAL = 0.001


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def wait(address: int, expected: int, timeout: float) -> None:
    """Wait until the 32-bit word at `address` is woken, is not `expected`, or `timeout` seconds have passed.

    Can return early. Releases the lock of the interpreter meanwhile.
    """
    number = _SYSCALLS.get(_MACHINE)
    if number is None or ctypes.sizeof(ctypes.c_long) != 8:
        time.sleep(min(timeout, _POLL_INTERVAL))
        return
    limit = _Timespec(int(timeout), int(timeout % 1 * 1e9))
    result = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_long(_FUTEX_WAIT),
        ctypes.c_long(expected),
        ctypes.byref(limit),
        None,
        ctypes.c_long(0),
    )
    if result != 0 and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
        # For example a sandbox that forbids the call.
        time.sleep(min(timeout, _POLL_INTERVAL))


class Fence:
    """Orders the loads before a call before the loads after it.

    x86 never reorders loads. Other processors order the release of a lock before the next acquisition of a lock.
    """

    def __init__(self) -> None:
        self._lock = None if _MACHINE in ("x86_64", "AMD64") else threading.Lock()
        if self._lock is not None:
            self._lock.acquire()

    def __call__(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock.acquire()
