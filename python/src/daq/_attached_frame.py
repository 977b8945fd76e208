"""A frame in the memory of an attached ring."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _arguments, _dlpack
from ._cuda import CudaMemory, Mark
from ._flags import Flags
from ._frame import Frame
from ._lease import Lease
from ._samples import Array
from ._state import Record, RingState

if TYPE_CHECKING:
    from ._attach import Attachment

# Values of `stream` in DLPack for the legacy default stream, and for "do not synchronise".
_LEGACY_STREAM = 1
_NO_STREAM = -1


class _View:
    """Exports a slot to NumPy. The array refers to this object, so the frame is in use as long as the array exists."""

    def __init__(self, address: int, length: int, owner: object) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (length,), "typestr": "|u1", "version": 3}
        self._owner = owner


class AttachedFrame(Frame):
    """A frame of an attached ring.

    Host memory: `numpy.asarray(frame)` and `torch.from_dlpack(frame)` refer to the slot of the ring without a copy. GPU
    memory: `cupy.asarray(frame)` and `torch.from_dlpack(frame)` do. These arrays must not be written.

    Without a guarantee, the producer can overwrite the slot at any time. Read `valid` after using the data. With a guarantee,
    the slot does not change until the next frame is requested or `release` is called, and no array refers to the frame any
    more. A frame from `copy=True` is a private copy in host memory and always valid.
    """

    def __init__(
        self,
        ring: Attachment,
        index: int,
        record: Record,
        lease: Lease | None,
        copied: Array | None,
    ) -> None:
        self._ring = ring
        self._record = record
        self._lease = lease
        #: The lease, if a consumer refers to this object instead of the lease.
        self._exported: Lease | None = None
        self._copied = copied
        self._streams: set[int] = lease.streams if lease is not None else set()
        self.layout = ring.layout
        #: Number of the frame in the ring, counted from the start of the run. It has no gaps.
        self.index = index

    @property
    def number(self) -> int:
        return self._record.number

    @property
    def epoch(self) -> int:
        return self._record.epoch

    @property
    def time_ns(self) -> int:
        return self._record.time_ns

    @property
    def clock(self) -> str:
        return self._record.clock

    @property
    def flags(self) -> Flags:
        return self._record.flags

    @property
    def present(self) -> npt.NDArray[np.bool_] | None:
        return self._record.present

    @property
    def kept(self) -> dict[str, int]:
        return self._record.kept

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Ranges of samples that did not arrive and are filled: first sample, number of samples."""
        present, sizes = self._record.present, self._record.sizes
        if present is None or present.all():
            return []
        return list(sizes.missing(present, self._record.length, self.layout.sample_bits))

    @property
    def missing(self) -> int:
        return sum(samples for _, samples in self.spans)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the payload."""
        return self._record.length

    @property
    def valid(self) -> bool:
        """Whether everything that was read so far is the payload of this frame, and not that of a later frame.

        Always true for copies; with a guarantee, true unless the daemon has revoked the access. On a GPU, waits for the work
        that was submitted to the streams which received the frame, because that work may still read it.
        """
        if self._copied is not None:
            return True
        memory = self._ring.memory
        if isinstance(memory, CudaMemory) and self._streams:
            Mark(memory, self._streams).wait()
        return self._state.is_intact(self.index)

    @property
    def _state(self) -> RingState:
        return self._ring.state

    def release(self, stream: int | None = None) -> None:
        """End the use of this frame, so that a guaranteed ring can overwrite it after the last array of it is deleted.

        The next iteration does the same. `stream` is the handle of a CUDA stream that reads the frame, if that stream is not
        the one that received the frame (for example `torch.cuda.current_stream().cuda_stream`).
        """
        if stream is not None:
            self._streams.add(_arguments.integer("stream", stream))
        self._lease = None

    def __enter__(self) -> AttachedFrame:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    @property
    def _address(self) -> int:
        if self._copied is not None:
            return int(self._copied.__array_interface__["data"][0])
        return self._ring.address(self.index)

    @property
    def _owner(self) -> object:
        """What must live while an array refers to the payload."""
        return (self._copied, self._lease, self._ring.memory)

    @property
    def _on_gpu(self) -> bool:
        return self._copied is None and isinstance(self._ring.memory, CudaMemory)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self._on_gpu:
            raise TypeError(
                f"ring {self._ring.name} is in GPU memory: use cupy.asarray(frame) or torch.from_dlpack(frame), or attach with "
                "copy=True for a copy in host memory"
            )
        raw = np.asarray(_View(self._address, self.nbytes, self._owner))
        array = self.layout.array(raw)
        return np.array(array, dtype=dtype) if copy else np.asarray(array, dtype=dtype)

    def copy(self) -> Array:
        """Return a private copy of the samples in host memory.

        Raises OverrunError if the producer overwrote the frame meanwhile.
        """
        return self.layout.array(self._copied if self._copied is not None else self._ring.copy(self.index, self.nbytes))

    def values(self) -> Array:
        return self.layout.values(self.copy() if self._on_gpu else np.asarray(self))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self._on_gpu:
            raise AttributeError("the frame is in host memory")
        # The consumer's stream is unknown. The legacy stream waits for all streams that do not opt out of that.
        self._streams.add(_LEGACY_STREAM)
        # Consumers refer to this object, so the frame is in use as long as this object exists.
        self._exported = self._lease
        return {
            # The memory is mapped read-only, but PyTorch rejects arrays that are declared as read-only.
            "data": (self._address, False),
            "shape": self.layout.shape(self.nbytes),
            "typestr": self.layout.dtype.str,
            "strides": None,
            "version": 3,
            # Published frames are complete, so that no stream must be waited for.
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        memory = self._ring.memory
        return (_dlpack.CUDA, memory.device) if self._on_gpu and isinstance(memory, CudaMemory) else (_dlpack.CPU, 0)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"the frame is on device {self.__dlpack_device__()} and cannot be exported to {dl_device}")
        if copy:
            raise BufferError("frames are exported without a copy; copy the array afterwards")
        if self.layout.dtype.byteorder == ">":
            raise BufferError(
                "DLPack has no big-endian numbers; put a kernel `convert` before this ring, or use frame.values()"
            )
        if self._on_gpu and stream != _NO_STREAM:
            # Published frames are complete, so the consumer's stream needs no wait. It is remembered for `valid`.
            self._streams.add(_LEGACY_STREAM if stream is None else stream)
        layout = self.layout
        return _dlpack.capsule(
            self._address,
            layout.shape(self.nbytes),
            layout.dtype,
            self.__dlpack_device__(),
            self._owner,
            versioned=max_version is not None and max_version[0] >= 1,
            is_bfloat16=layout.sample_type == "bfloat16",
        )
