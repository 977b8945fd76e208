"""Rings in GPU memory, with a substitute for the CUDA driver whose device memory is host memory."""

from __future__ import annotations

import ctypes
import mmap
import tempfile
import unittest
from typing import Any
from unittest import mock

import numpy as np

import daq
from daq import _cuda

from .fake_daemon import STRIDE, FakeDaemon
from .test_attach import payload

UUID = bytes(range(16))


class FakeDriver(_cuda.Driver):
    """Implements the functions that the package uses. Records their names."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.access = 0
        self.pending = False
        #: Results of functions that fail.
        self.failures: dict[str, int] = {}
        self.memory: Any = None

    def result(self, function: str, *arguments: Any) -> int:
        self.calls.append(function)
        code = getattr(self, "_" + function, lambda *_: 0)(*arguments)
        return self.failures.get(function, int(code or 0))

    def __call__(self, function: str, *arguments: Any) -> None:
        code = self.result(function, *arguments)
        if code:
            raise daq.AttachError(f"{function} failed: {code}")

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 2

    def _cuDeviceGet(self, device: Any, number: ctypes.c_int) -> None:
        device._obj.value = number.value

    def _cuDeviceGetUuid_v2(self, uuid: Any, device: ctypes.c_int) -> None:
        uuid._obj.bytes[:] = UUID if device.value == 1 else bytes(16)

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> None:
        context._obj.value = 1234

    def _cuMemImportFromShareableHandle(self, handle: Any, fd: ctypes.c_void_p, kind: ctypes.c_int) -> int:
        if kind.value != 1:
            return 1
        self.memory = np.frombuffer(mmap.mmap(fd.value or 0, 0, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)
        handle._obj.value = 7
        return 0

    def _cuMemAddressReserve(self, address: Any, *_: Any) -> None:
        address._obj.value = self.memory.ctypes.data

    def _cuMemSetAccess(self, address: Any, size: Any, access: Any, count: Any) -> None:
        self.access = access._obj.flags

    def _cuMemcpyDtoH_v2(self, target: ctypes.c_void_p, source: ctypes.c_ulonglong, size: ctypes.c_size_t) -> None:
        ctypes.memmove(target, source.value, size.value)

    def _cuEventCreate(self, event: Any, flags: Any) -> None:
        event._obj.value = 99

    def _cuEventQuery(self, event: Any) -> int:
        return 600 if self.pending else 0


class CudaDaemon(FakeDaemon):
    """A daemon whose ring is in GPU memory."""

    def _reply(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        reply, fds = super()._reply(request)
        if fds:
            uuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
            reply["ring"]["memory"] = {"kind": "cuda", "ordinal": 0, "uuid": uuid, "bytes": self.slots * STRIDE}
        return reply, fds


class CudaTest(unittest.TestCase):
    """One ring per test."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.driver = FakeDriver()
        patch = mock.patch.object(_cuda, "driver", return_value=self.driver)
        patch.start()
        self.addCleanup(patch.stop)
        self.daemon = CudaDaemon(directory.name)
        self.addCleanup(self.daemon.stop)
        self.state_dir = directory.name

    def attach(self, **options: Any) -> daq.Attachment:
        ring = daq.attach("adc", state_dir=self.state_dir, **options)
        self.addCleanup(ring.close)
        return ring

    def frame(self, ring: daq.Attachment) -> daq.AttachedFrame:
        self.daemon.publish(payload(self.daemon.published))
        frame = ring.read(timeout=60)
        assert frame is not None
        return frame

    def test_memory_is_mapped_for_reading_on_the_gpu_of_the_ring(self) -> None:
        self.attach()
        self.assertEqual(self.driver.access, 1)
        order = ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemRelease", "cuMemSetAccess"]
        self.assertEqual([call for call in self.driver.calls if call.startswith("cuMem")], order)
        self.assertEqual(self.driver.calls.count("cuCtxPushCurrent_v2"), self.driver.calls.count("cuCtxPopCurrent_v2"))

    def test_frames_export_the_address_of_their_slot(self) -> None:
        ring = self.attach(newest=False)
        for index in range(5):
            frame = self.frame(ring)
            interface = frame.__cuda_array_interface__
            address = self.driver.memory.ctypes.data + index % 4 * STRIDE
            self.assertEqual(interface["data"], (address, False))
            self.assertEqual((interface["shape"], interface["typestr"], interface["stream"]), ((8, 2), "<i2", None))
            self.assertEqual(frame.__dlpack_device__(), (2, 1))
            frame.__dlpack__(stream=2)
            with self.assertRaises(BufferError):
                frame.__dlpack__(dl_device=(1, 0))
            with self.assertRaisesRegex(TypeError, "copy=True"):
                np.asarray(frame)
            self.assertEqual(frame.copy().tobytes(), payload(index))
            self.assertEqual(frame.values().tobytes(), payload(index))

    def test_copies_are_in_host_memory(self) -> None:
        frame = self.frame(self.attach(copy=True))
        self.assertEqual(np.asarray(frame).tobytes(), payload(0))
        self.assertFalse(hasattr(frame, "__cuda_array_interface__"))
        self.assertEqual(frame.__dlpack_device__(), (1, 0))

    def test_valid_waits_for_the_streams_that_received_the_frame(self) -> None:
        ring = self.attach(newest=False)
        frame = self.frame(ring)
        self.assertTrue(frame.valid)
        self.assertNotIn("cuEventSynchronize", self.driver.calls)
        frame.__dlpack__(stream=2)
        self.assertTrue(frame.valid)
        self.assertIn("cuEventSynchronize", self.driver.calls)
        self.daemon.reserve(5)
        self.assertFalse(frame.valid)

    def test_a_guaranteed_frame_is_retired_after_the_work_of_its_streams(self) -> None:
        ring = self.attach(guarantee=True)
        frame = self.frame(ring)
        capsule = frame.__dlpack__(stream=2)
        self.driver.pending = True
        self.assertIsNone(ring.read(timeout=0))
        del capsule
        self.assertIsNone(ring.read(timeout=0))
        self.assertFalse(any(progress["retired"] for progress in self.daemon.progress))
        self.driver.pending = False
        self.assertIsNone(ring.read(timeout=0))
        self.daemon.wait_progress(retired=1, read=1)

    def test_a_guaranteed_frame_never_retires_after_an_error_of_the_gpu(self) -> None:
        for function in ("cuEventQuery", "cuEventRecord"):
            with self.subTest(function):
                ring = self.attach(guarantee=True)
                self.driver.failures[function] = 719
                frame = self.frame(ring)
                frame.__dlpack__(stream=2)
                del frame
                if function == "cuEventRecord":
                    with self.assertRaisesRegex(daq.AttachError, "719"):
                        ring.read(timeout=0)
                else:
                    self.assertIsNone(ring.read(timeout=0))
                retired = ring.counts["read"]
                self.driver.failures.clear()
                ring.close()
                self.assertEqual(retired, 0)

    def test_an_interface_holds_the_frame(self) -> None:
        ring = self.attach(guarantee=True)
        frame = self.frame(ring)
        self.assertIn("data", frame.__cuda_array_interface__)
        self.assertIsNone(ring.read(timeout=0))
        self.assertFalse(any(progress["retired"] for progress in self.daemon.progress))
        del frame
        self.assertIsNone(ring.read(timeout=0))
        self.daemon.wait_progress(retired=1, read=1)

    def test_memory_is_unmapped_after_the_last_reference(self) -> None:
        ring = self.attach()
        frame = self.frame(ring)
        capsule = frame.__dlpack__()
        ring.close()
        del ring, frame
        self.doCleanups()
        self.assertNotIn("cuMemUnmap", self.driver.calls)
        del capsule
        self.assertIn("cuMemUnmap", self.driver.calls)
        self.assertEqual(self.driver.calls[-1], "cuDevicePrimaryCtxRelease_v2")

    def test_a_gpu_that_this_process_cannot_see_is_named(self) -> None:
        with (
            mock.patch.object(FakeDriver, "_cuDeviceGetCount", return_value=0),
            self.assertRaisesRegex(daq.AttachError, "CUDA_VISIBLE_DEVICES"),
        ):
            self.attach()


if __name__ == "__main__":
    unittest.main()
