"""The running pipelines, and their state."""

from __future__ import annotations

import builtins
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _arguments
from ._connection import Connection, directories, sockets
from ._errors import AttachError
from ._samples import Layout

_HTTP_TIMEOUT = 10.0


def layout_of(ring: Mapping[str, Any]) -> Layout:
    """Return the layout in a ring's description by the daemon."""
    layout = ring["layout"]
    axis = layout.get("axis") or {}
    return Layout(
        sample_type=layout["type"],
        is_complex=bool(layout.get("complex", False)),
        channels=int(layout.get("channels", 1)),
        points=int(layout.get("points", 0)),
        order=layout.get("order", "interleaved"),
        axis=axis,
        sample_rate=axis.get("rate"),
        frame_rate=layout.get("frame_rate"),
    )


@dataclass(frozen=True, repr=False)
class Ring:
    """A ring of a running pipeline."""

    name: str
    #: `host`, or a GPU such as `cuda:0`.
    memory: str
    slots: int
    slot_bytes: int
    layout: Layout
    #: Number of frames published so far.
    published: int
    #: True, or the reason why no process can attach.
    attachable: bool | str
    #: Whether clients with a guarantee are allowed.
    guarantee: bool
    #: Number of attached clients.
    clients: int

    def __repr__(self) -> str:
        shape = f"{self.layout.dtype} {self.layout.shape()}"
        return f"<Ring {self.name}: {self.slots} slots in {self.memory} memory, {shape}, {self.published} published>"


@dataclass(frozen=True)
class ProcessSource:
    """A source whose frames another process writes."""

    name: str
    #: Name of its ring.
    ring: str
    #: Size of its frames in bytes.
    frame_bytes: int


@dataclass(frozen=True, repr=False)
class Pipeline:
    """A running pipeline."""

    name: str
    #: Version of daq.
    version: str
    #: Process ID of the daemon.
    pid: int
    #: Address of the HTTP server, such as `127.0.0.1:9464`; None without one.
    http: str | None
    #: The rings by name.
    rings: Mapping[str, Ring]
    #: The sources with the driver `process` by name.
    sources: Mapping[str, ProcessSource]
    #: Path of the socket.
    socket: Path

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}, process {self.pid}, rings: {', '.join(sorted(self.rings))}>"

    def status(self) -> dict[str, Any]:
        """Return the state, ledgers and plan of the pipeline: the object that `/status` of its HTTP server returns.

        Raises AttachError if the pipeline has no HTTP server.
        """
        if self.http is None:
            raise AttachError(f"pipeline {self.name} has no HTTP server; add a section [http] to its configuration")
        return fetch_status(self.http)


def pipelines(state_dir: str | os.PathLike[str] | None = None) -> builtins.list[Pipeline]:
    """Return the running pipelines of this user, by their sockets in the state directory.

    `state_dir` is the directory that `daq run --state-dir` names; default: from the environment, as daq does.
    """
    return described(sockets(state_dir))


def described(paths: Iterable[Path]) -> builtins.list[Pipeline]:
    """Return the pipelines whose daemons answer on the sockets `paths`."""
    found = []
    for path in paths:
        try:
            found.append(describe(path))
        except AttachError:
            # The socket of a killed daemon, or of another user.
            continue
    return found


def describe(path: str | os.PathLike[str]) -> Pipeline:
    """Return the pipeline that listens on the socket at `path`. Raises AttachError if none does."""
    with Connection(path) as connection:
        reply, _ = connection.request({"request": "list"})
    return Pipeline(
        name=reply["pipeline"],
        version=reply["version"],
        pid=reply["pid"],
        http=reply.get("http"),
        rings={
            ring["name"]: Ring(
                name=ring["name"],
                memory=ring["memory"],
                slots=ring["slots"],
                slot_bytes=ring["slot_bytes"],
                layout=layout_of(ring),
                published=ring["published"],
                attachable=ring["attachable"],
                guarantee=bool(ring.get("guarantee")),
                clients=ring.get("clients", 0),
            )
            for ring in reply["rings"]
        },
        sources={
            source["name"]: ProcessSource(source["name"], source["ring"], source["frame_bytes"])
            for source in reply.get("sources", [])
        },
        socket=Path(path),
    )


def find(
    ring: str | None = None,
    pipeline: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
) -> Pipeline:
    """Return the one running pipeline with this name and a ring of this name.

    Raises AttachError if there is none, or if there are several.
    """
    if pipeline is not None:
        _arguments.text("pipeline", pipeline)
    running = pipelines(state_dir)
    found = [p for p in running if pipeline in (None, p.name) and (ring is None or ring in p.rings)]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        names = ", ".join(sorted(p.name for p in found))
        raise AttachError(f"several pipelines run: {names}; name one with `pipeline`")
    if not running:
        places = ", ".join(map(str, directories(state_dir))) or "no directory: HOME is not set"
        raise AttachError(f"no pipeline runs (no socket of a daemon in {places}); start `daq run`, or give `state_dir`")
    known = "; ".join(f"{p.name} has {', '.join(sorted(p.rings))}" for p in running)
    wanted = "pipeline" if pipeline is None else f"pipeline {pipeline!r}"
    raise AttachError(f"no {wanted} runs: {known}" if ring is None else f"no {wanted} with a ring {ring!r}: {known}")


def status(
    pipeline: str | None = None,
    *,
    http: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return the state, ledgers and plan of a running pipeline: the object that `/status` of its HTTP server returns.

    `pipeline` is only needed if several pipelines run. `http` is the address of an HTTP server, such as `127.0.0.1:9464`, or
    the URL of a proxy; it also works for pipelines of other users and, through a tunnel, of other hosts. Raises AttachError if
    nothing answers.
    """
    return fetch_status(http) if http is not None else find(None, pipeline, state_dir).status()


def fetch_status(address: str) -> dict[str, Any]:
    """Return `/status` of the HTTP server at `address`. Raises AttachError if the server does not answer."""
    prefix = "" if _arguments.text("http", address).startswith(("http://", "https://")) else "http://"
    url = f"{prefix}{address.rstrip('/')}/status"
    # A proxy of the environment cannot reach a loopback address of this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_HTTP_TIMEOUT) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer
    except urllib.error.HTTPError as error:
        text = error.read(300).decode(errors="replace").strip()
        raise AttachError(f"{url} answered {error.code}: {text}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AttachError(f"no daemon answers at {url}: {getattr(error, 'reason', error)}") from error
