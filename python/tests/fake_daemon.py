"""A daemon with one ring, as "The attach protocol" of the documentation describes it. Tests control each position."""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import mmap
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

LAYOUT = {
    "type": "int16",
    "complex": False,
    "channels": 2,
    "points": 8,
    "order": "interleaved",
    "axis": {"kind": "time", "rate": 1e6},
    "frame_rate": 125000.0,
}
FRAME_BYTES = 32
STRIDE = 64
KEPT = ("antenna", "trigger")
# Head, bitmap, mask and two fields, rounded to whole cache lines.
RECORD_STRIDE = 128
_libc = ctypes.CDLL(None, use_errno=True)
_FUTEX_WAKE = 1


class FakeDaemon:
    """Serves one ring with `slots` slots on a socket in `directory`."""

    def __init__(self, directory: str, slots: int = 4, layout: dict[str, Any] | None = None) -> None:
        self.path = Path(directory) / "fake.attach"
        self.slots = slots
        self.layout = layout or LAYOUT
        self.published = self.reserved = 0
        self.produced: list[tuple[int, int, int, bytes]] = []
        self.flags: list[int] = []
        self.refused = 0
        #: Time in seconds for which a client may hold a frame.
        self.hold: float | None = None
        #: Sent in place of each reply, if it is set.
        self.answer = b""
        self.acknowledge = threading.Event()
        self.acknowledge.set()
        self.progress: list[dict[str, int]] = []
        self.requests: list[dict[str, Any]] = []
        self._files = [os.memfd_create(name) for name in ("state", "memory")]
        self.state, self.memory = (
            self._mapped(fd, size) for fd, size in zip(self._files, (4096 + slots * RECORD_STRIDE, slots * STRIDE))
        )
        struct.pack_into("<QQ", self.state, 0, 0x31676E6972716164, 1)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(os.fspath(self.path))
        self._listener.listen()
        self._clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @staticmethod
    def _mapped(fd: int, size: int) -> mmap.mmap:
        os.ftruncate(fd, size)
        return mmap.mmap(fd, size)

    def reserve(self, frames: int = 1) -> None:
        """Announce that the next frames are being written."""
        self.reserved += frames
        struct.pack_into("<Q", self.state, 128, self.reserved)

    def publish(self, payload: bytes, **meta: int) -> int:
        """Write and publish a frame; returns its index."""
        index = self.published
        self.reserve(max(0, index + 1 - self.reserved))
        slot = index % self.slots
        self.memory[slot * STRIDE : slot * STRIDE + len(payload)] = payload
        bitmap = meta.get("bitmap", 0b1111)
        record = struct.pack(
            "<QIIQIIQIIIIQQQQ",
            meta.get("number", index),
            meta.get("epoch", 1),
            meta.get("flags", 0),
            meta.get("time_ns", 1_000_000_000 + index),
            meta.get("clock", 1),
            meta.get("parts", 1),
            len(payload),
            4,
            bin(bitmap).count("1"),
            8,
            8,
            bitmap,
            meta.get("mask", 0b01),
            100 + index,
            200 + index,
        )
        start = 4096 + slot * RECORD_STRIDE
        self.state[start : start + len(record)] = record
        self.published += 1
        struct.pack_into("<Q", self.state, 64, self.published)
        self._wake()
        return index

    def close_ring(self) -> None:
        """End the producer."""
        struct.pack_into("<Q", self.state, 192, 1)
        self._wake()

    def send(self, packet: dict[str, Any]) -> None:
        """Send a packet to all clients."""
        for client in self._clients:
            # A connection that only listed the rings is closed.
            with contextlib.suppress(BrokenPipeError):
                client.send(json.dumps(packet).encode())

    def disconnect(self) -> None:
        """Close all connections, as a killed daemon does."""
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Remove the socket and all files."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            client.close()
        for fd in self._files:
            os.close(fd)
        self.path.unlink(missing_ok=True)

    def wait_progress(self, **wanted: int) -> dict[str, int]:
        """Wait until a client has reported these counts, and return the whole report."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for progress in self.progress:
                if wanted.items() <= progress.items():
                    return progress
            time.sleep(0.005)
        raise AssertionError(f"no report with {wanted}: {self.progress}")

    def _wake(self) -> None:
        word = (struct.unpack_from("<I", self.state, 256)[0] + 1) & 0xFFFF_FFFF
        struct.pack_into("<I", self.state, 256, word)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.state)) + 256
        number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
        _libc.syscall(number, ctypes.c_void_p(address), _FUTEX_WAKE, 1 << 30, None, None, 0)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve_client, args=(client,), daemon=True).start()

    def _serve_client(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                packet, received, _, _ = socket.recv_fds(client, 65536, 1)
                if not packet:
                    return
                if received:
                    self._consume(client, received[0])
                    return
                request = json.loads(packet)
                if "progress" in request:
                    self.progress.append(request["progress"])
                    continue
                self.requests.append(request)
                reply, fds = self._reply(request)
                control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                client.sendmsg([self.answer or json.dumps(reply).encode()], control)

    def _consume(self, client: socket.socket, fd: int) -> None:
        """Serve a producer whose frames are those of the ring."""
        inbox = mmap.mmap(fd, 0)
        os.close(fd)
        client.send(json.dumps({"ok": True, "source": {"name": "flags", "slots": len(inbox) // STRIDE}}).encode())
        while True:
            packet = client.recv(65536)
            for slot, time_ns, clock, flags in struct.iter_unpack("<QQQQ", packet):
                if slot * STRIDE >= len(inbox) or flags & ~0b1101:
                    client.send(b'{"revoked": "an invalid commit"}')
                    return
                self.flags.append(flags)
                self.produced.append((slot, time_ns, clock, inbox[slot * STRIDE : slot * STRIDE + FRAME_BYTES]))
            if not packet:
                return
            self.acknowledge.wait()
            client.send(struct.pack("<QQ", len(self.produced), self.refused))

    def _reply(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        ring = {"name": "adc", "slots": self.slots, "slot_bytes": FRAME_BYTES, "layout": self.layout}
        if request.get("request") == "list":
            about = {"memory": "host", "published": self.published, "attachable": True, "guarantee": True, "clients": 0}
            sources = [{"name": "flags", "ring": "adc", "frame_bytes": FRAME_BYTES}]
            pipeline = {"ok": True, "pipeline": "fake", "version": "0", "pid": os.getpid()}
            return {**pipeline, "rings": [{**ring, **about}], "sources": sources}, []
        if request.get("ring") != "adc":
            return {"ok": False, "error": f"no ring {request.get('ring')}"}, []
        first = {"next": self.published, "newest": max(0, self.published - 1), "oldest": 0}[request["at"]]
        about = {
            "memory": {"kind": "host"},
            "stride": STRIDE,
            "record_stride": RECORD_STRIDE,
            "bitmap_words": 1,
            "packets_per_frame": 4,
            "kept": list(KEPT),
            "fill": [0, 0, 0, 0],
            "first": first,
        }
        if self.hold is not None:
            about["hold"] = self.hold
        return {"ok": True, "ring": {**ring, **about}}, self._files
