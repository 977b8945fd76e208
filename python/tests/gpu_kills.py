"""Attaches many processes to a ring and kills each at a random moment. Prints one JSON object.

    python -m tests.gpu_kills SOCKET RING KILLS AT_ONCE SECONDS

The processes are forks, so that they do not spend their time on imports. Nothing here may use CUDA before a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import statistics
import sys
import time
from dataclasses import dataclass

import daq

ATTACHED, READING = b"a", b"r"


@dataclass
class Client:
    """A process that reads the ring until it is killed."""

    pid: int
    pipe: int
    started: float
    #: When the process is killed; None: some milliseconds after it has read a frame.
    deadline: float | None
    #: What the process has reported: that it is attached, that it reads, or an error.
    text: bytes = b""


def start(socket: str, ring: str, deadline: float | None) -> Client:
    """Fork a client."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with daq.attach(ring, socket=socket, newest=False) as attached:
                os.write(write, ATTACHED)
                for i, frame in enumerate(attached):
                    with contextlib.suppress(daq.OverrunError):
                        frame.copy()
                    if i == 0:
                        os.write(write, READING)
        except BaseException as error:  # noqa: BLE001, RUF100 - the parent reports it
            os.write(write, f"{type(error).__name__}: {error}".encode()[:200])
        os._exit(1)
    os.close(write)
    return Client(pid, read, time.monotonic(), deadline)


def kill(client: Client) -> None:
    """End a client and read what it has reported."""
    os.kill(client.pid, signal.SIGKILL)
    os.waitpid(client.pid, 0)
    while text := os.read(client.pipe, 4096):
        client.text += text
    os.close(client.pipe)


def kill_clients(socket: str, ring: str, kills: int, at_once: int, seconds: float) -> dict[str, object]:
    """Kill clients until there were enough of them, or the time is over."""
    live: list[Client] = []
    dead: list[Client] = []
    durations = [0.5]
    end = time.monotonic() + seconds
    while len(dead) < kills and (live or time.monotonic() < end):
        now = time.monotonic()
        while len(live) < min(at_once, kills - len(dead)) and now < end:
            # Half of the clients are killed before they read, at any step of their start.
            until_read = statistics.median(durations[-20:])
            live.append(start(socket, ring, now + random.uniform(0, 1.2 * until_read) if random.random() < 0.5 else None))
        for client in [c for c in live if c.pipe in select.select([c.pipe for c in live], [], [], 0.002)[0]]:
            text = os.read(client.pipe, 4096)
            client.text += text
            if READING in text:
                durations.append(time.monotonic() - client.started)
                client.deadline = min(client.deadline or end + 9, time.monotonic() + random.uniform(0, 0.02))
            elif not text or text[:1] not in (ATTACHED, READING):
                # It ended by itself.
                client.deadline = 0.0
        now = time.monotonic()
        due = [c for c in live if (c.deadline is not None and c.deadline <= now) or now - c.started > 60]
        if due and random.random() < 0.1:
            due = list(live)
        for client in due:
            kill(client)
            live.remove(client)
        dead += due
    known = {b"", ATTACHED, ATTACHED + READING}
    return {
        "killed": len(dead),
        "attached": sum(client.text.startswith(ATTACHED) for client in dead),
        "reading": sum(READING in client.text for client in dead),
        "errors": sorted({client.text.decode(errors="replace") for client in dead if client.text not in known})[:3],
        "seconds": round(seconds - (end - time.monotonic()), 1),
        "start_ms": round(1000 * statistics.median(durations[1:] or durations)),
    }


if __name__ == "__main__":
    result = kill_clients(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    print(json.dumps(result), flush=True)
