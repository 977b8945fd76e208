"""The errors of this package."""

from __future__ import annotations


class DaqError(Exception):
    """The base of all errors of this package."""


class AttachError(DaqError):
    """No ring can be attached: no daemon runs, the ring does not exist, or the daemon refused the request."""


class RevokedError(DaqError):
    """The daemon ended the access to a ring or a source, for example because a guaranteed frame was held too long."""


class OverrunError(DaqError):
    """The producer overwrote a frame before it could be copied."""


class RecordingError(DaqError):
    """A recording does not exist, or its files cannot be read."""


class RunError(DaqError):
    """A run of daq failed.

    `code` is the exit code (see "Exit codes" in the documentation), and `log` the end of the log.
    """

    def __init__(self, message: str, code: int, log: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.log = log
