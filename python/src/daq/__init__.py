"""Reads the rings of running daq pipelines, and their recordings, as arrays.

`attach` reads the frames of a ring in place: in host memory with NumPy, on a GPU with CuPy or torch. `Recording` opens the
files of the sinks `file` and `zarr`. `run`, `list` and `status` start and observe pipelines, and `produce` writes frames into a
ring.
"""

from __future__ import annotations

from ._attach import Attachment, attach
from ._attached_frame import AttachedFrame
from ._cuda import CudaMemory
from ._errors import AttachError, DaqError, OverrunError, RecordingError, RevokedError, RunError
from ._flags import CLOCKS, UTC_CLOCKS, Flags
from ._frame import Frame
from ._pipelines import Pipeline, ProcessSource, Ring, status
from ._pipelines import pipelines as list  # the name of the command `daq ls` in Python
from ._produce import Producer, produce
from ._recording import RecordedFrame, Recording
from ._rows import Rows
from ._run import Run, run
from ._samples import Layout, unpack
from ._segment import UNKNOWN_NUMBER, Gap, Segment, Span

__version__ = "0.1.0"

__all__ = [
    "CLOCKS",
    "UNKNOWN_NUMBER",
    "UTC_CLOCKS",
    "AttachError",
    "AttachedFrame",
    "Attachment",
    "CudaMemory",
    "DaqError",
    "Flags",
    "Frame",
    "Gap",
    "Layout",
    "OverrunError",
    "Pipeline",
    "ProcessSource",
    "Producer",
    "RecordedFrame",
    "Recording",
    "RecordingError",
    "RevokedError",
    "Ring",
    "Rows",
    "Run",
    "RunError",
    "Segment",
    "Span",
    "attach",
    "list",
    "produce",
    "run",
    "status",
    "unpack",
]
