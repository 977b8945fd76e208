"""Connections to the socket of a running daemon, and how daemons are found.

The protocol is described in "The attach protocol" of the documentation.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import _arguments
from ._errors import AttachError

MAX_PACKET = 65536
SUFFIX = ".attach"
# The daemon answers at once; a longer silence means that it is stopped.
_TIMEOUT = 10.0
_MAX_FDS = 4


class Connection:
    """A connection to a daemon. Raises AttachError if the daemon does not listen, or does not answer."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.settimeout(_TIMEOUT)
        try:
            self._socket.connect(os.fspath(path))
        except OSError as error:
            self._socket.close()
            reason = error.strerror or error
            raise AttachError(f"cannot connect to {path}: {reason}; is it the socket of a running pipeline?") from error

    def request(self, packet: Mapping[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """Send a request and return the reply with its file descriptors, which the caller closes.

        Raises AttachError with the daemon's message if the daemon refuses the request.
        """
        try:
            if fds:
                socket.send_fds(self._socket, [_encode(packet)], list(fds))
            else:
                self._socket.send(_encode(packet))
            data, received, _, _ = socket.recv_fds(self._socket, MAX_PACKET, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise AttachError(f"{self.path} does not answer: {error.strerror or error}") from error
        try:
            if not data:
                raise AttachError(f"the daemon closed the connection to {self.path}")
            reply: dict[str, Any] = _decode(data, self.path)
            if not reply.get("ok"):
                raise AttachError(str(reply.get("error") or reply.get("revoked") or "the daemon refused the request"))
        except AttachError:
            for fd in received:
                os.close(fd)
            raise
        return reply, received

    def send(self, packet: Mapping[str, Any]) -> bool:
        """Send a packet without a reply. Returns false if it cannot be sent without waiting, or if the daemon has closed."""
        return self.send_bytes(_encode(packet))

    def send_bytes(self, packet: bytes) -> bool:
        """Send a packet that is not JSON, like `send`."""
        self._socket.settimeout(0.0)
        try:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        finally:
            self._socket.settimeout(_TIMEOUT)
        return True

    def receive(self, timeout: float = 0.0) -> dict[str, Any] | None:
        """Return the next packet of the daemon, or None if there is none within `timeout` seconds.

        After the daemon has closed the connection, the packet is `{"closed": True}`.
        """
        data = self.receive_bytes(timeout)
        if data is None:
            return None
        packet: dict[str, Any] = json.loads(data) if data else {"closed": True}
        return packet

    def receive_bytes(self, timeout: float) -> bytes | None:
        """Return the next packet of the daemon, or None if there is none; empty if the daemon has closed the connection."""
        self._socket.settimeout(timeout)
        try:
            return self._socket.recv(MAX_PACKET)
        except (BlockingIOError, socket.timeout):
            return None
        except OSError:
            return b""
        finally:
            self._socket.settimeout(_TIMEOUT)

    def fileno(self) -> int:
        """Return the file descriptor of the socket; -1 after `close`."""
        return self._socket.fileno()

    def end(self, timeout: float) -> None:
        """Send nothing more, and wait until the daemon has closed the connection too, at most `timeout` seconds."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(timeout)
            while self._socket.recv(MAX_PACKET):
                pass
        except OSError:
            pass

    def close(self) -> None:
        """Close the connection, which ends the access to a ring."""
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _decode(data: bytes, path: Path) -> dict[str, Any]:
    try:
        reply = json.loads(data)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise AttachError(f"{path} is not the socket of a pipeline: it answered {data[:40]!r}")
    return reply


def _encode(packet: Mapping[str, Any]) -> bytes:
    return json.dumps(packet, separators=(",", ":")).encode()


def directories(
    state_dir: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> list[Path]:
    """Return the directories with sockets of daemons: the state directory, and that for long paths.

    `environ` are the variables of the daemon; default: those of this process.
    """
    found = []
    environment = (os.environ if environ is None else environ).get
    if state_dir is not None:
        found.append(_arguments.path("state_dir", state_dir))
    elif environment("STATE_DIRECTORY"):
        found.append(Path(environment("STATE_DIRECTORY", "").split(":")[0]))
    elif os.path.isabs(environment("XDG_STATE_HOME", "")):
        found.append(Path(environment("XDG_STATE_HOME", "")) / "daq")
    elif environment("HOME"):
        found.append(Path(environment("HOME", "")) / ".local/state/daq")
    if environment("XDG_RUNTIME_DIR"):
        found.append(Path(environment("XDG_RUNTIME_DIR", "")) / "daq")
    return found


def sockets(
    state_dir: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> list[Path]:
    """Return the sockets in the directories of `directories`; those of killed daemons refuse connections."""
    return [path for directory in directories(state_dir, environ) for path in sorted(directory.glob(f"*{SUFFIX}"))]
