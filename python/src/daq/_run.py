"""Starts and stops pipelines."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from . import _arguments
from ._attach import Attachment, attach
from ._connection import SUFFIX, sockets
from ._errors import AttachError, RunError
from ._pipelines import Pipeline, described

_MEANINGS = {
    1: "a check failed",
    64: "wrong command line",
    69: "something needed is unavailable",
    70: "a defect of daq or of a kernel",
    74: "reading or writing failed",
    78: "wrong configuration",
}
_POLL_INTERVAL = 0.02
_LOG_LINES = 20
#: Time in seconds for a run to stop after an interrupted start.
_STOP_TIMEOUT = 20.0


def run(
    *configurations: str | os.PathLike[str],
    set: Mapping[str, object] | None = None,
    duration: str | None = None,
    frames: Mapping[str, int] | None = None,
    drain: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    log: IO[Any] | None = None,
    binary: str | os.PathLike[str] | None = None,
    wait: bool = True,
) -> Run:
    """Start `daq run` with these TOML files, and wait until it is ready (see `Run.wait_ready`). The result is a context manager, which
    stops the run at the end.

    ```python
    with daq.run("spectrometer.toml", set={"ring.raw.slots": 128}) as run:
        for frame in run.attach("spectra"):
            ...
    print(run.report["sources"])
    ```

    `set` overrides values of the configuration. The run ends after `duration`, such as `"10 s"`, or after so many `frames` of a
    ring; see `daq run --help` for these options, `drain` and `state_dir`. `arguments` are further options.

    `log` is the file for the log, such as `sys.stderr`; default: a temporary file, which `Run.log` returns. `binary` is the
    program; default: `daq` in the search path. With `wait=False`, this function returns at once, and `Run.wait_ready` waits for
    the sources; packets that arrive earlier are lost. Raises RunError if the program cannot be started or ends before it is
    ready, and TypeError for a wrong argument.
    """
    wanted = os.fspath(_arguments.path("binary", "daq" if binary is None else binary))
    program = shutil.which(wanted, path=(os.environ if env is None else env).get("PATH"))
    if program is None:
        raise RunError(f"cannot find the program {wanted!r}; install daq or give its path as `binary`", 127)
    files = [os.fspath(_arguments.path("configurations", file)) for file in configurations]
    command = [os.path.abspath(program), "run", *files, "--report", "json"]
    for key, value in _mapping("set", set).items():
        command += ["--set", f"{key}={value if isinstance(value, str) else _toml(key, value)}"]
    for ring, count in _mapping("frames", frames).items():
        command += ["--frames", f"{ring}={_arguments.integer(f'frames[{ring!r}]', count)}"]
    for name, option, limit in (("duration", "--for", duration), ("drain", "--drain", drain)):
        if limit is not None:
            command += [option, _arguments.text(name, limit)]
    if state_dir is not None:
        state_dir = _arguments.path("state_dir", state_dir)
        command += ["--state-dir", os.fspath(state_dir)]
    if isinstance(arguments, str):
        raise TypeError(f"`arguments` must be a list of texts, not {arguments!r}; write {arguments.split()!r}")
    if log is not None and not hasattr(log, "fileno"):
        raise TypeError(f"`log` must be an open file such as sys.stderr, not {log!r}")
    started = Run([*command, *arguments], state_dir, cwd, env, log)
    if wait:
        try:
            started.wait_ready()
        except BaseException:
            started.stop(_STOP_TIMEOUT)
            raise
    return started


class Run:
    """A run of `daq run`. Leaving its context stops the run and raises RunError if it failed."""

    def __init__(
        self,
        command: Sequence[str],
        state_dir: Path | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        log: IO[Any] | None = None,
    ) -> None:
        self._state_dir = state_dir if state_dir is None or cwd is None else Path(cwd) / state_dir
        #: The variables of the process, which can name its state directory.
        self._environ = None if env is None else dict(env)
        #: The exit code if the signal to stop ended the process at once.
        self._stop_code: int | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()
        self._log: IO[bytes] | None = tempfile.TemporaryFile() if log is None else None
        #: The end of the pipe on which the run reports that it is ready; None when it has reported or ended.
        self._ready: IO[bytes] | None = None
        ready, report = os.pipe()
        self._ready = os.fdopen(ready, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                [*command, "--ready-fd", str(report)],
                pass_fds=(report,),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._log if self._log is not None else log,
                cwd=cwd,
                env=self._environ,
            )
        except OSError as error:
            raise RunError(f"cannot start {command[0]}: {error.strerror}: {error.filename}", 127) from error
        finally:
            os.close(report)

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code, 128 + the number of a signal that ended the process, or None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def log(self) -> str:
        """The log so far; empty if it goes to another file."""
        return "" if self._log is None else _read(self._log)

    @property
    def report(self) -> dict[str, Any] | None:
        """The final ledgers; None while the process runs, or if the pipeline did not start."""
        text = "" if self.running else _read(self._output)
        with contextlib.suppress(ValueError):
            report: dict[str, Any] = json.loads(text)
            return report
        return None

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until all sources have started and can receive data, so that no later packet is missed.

        Returns at once if the run has already ended without an error. Raises RunError if the run fails first, and AttachError
        after `timeout` seconds.
        """
        if self._ready is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._ready, selectors.EVENT_READ)
            readable = selector.select(timeout)
        if not readable:
            raise AttachError(f"process {self.pid} is not ready after {timeout} s; {self.log}")
        is_ready = bool(self._ready.read(1))
        self._ready.close()
        self._ready = None
        if not is_ready:
            # The process has closed its end, because it ends.
            self.wait()
            self._check()

    def pipeline(self, timeout: float = 30.0) -> Pipeline:
        """Return the pipeline of this run as soon as its socket answers.

        Raises RunError if the run ends first, and AttachError after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while True:
            for pipeline in described(sockets(self._state_dir, self._environ)):
                if pipeline.pid == self.pid:
                    return pipeline
            if not self.running:
                self._check()
                raise RunError("the run has ended", self.code or 0, self.log)
            if time.monotonic() >= end:
                raise AttachError(f"no socket *{SUFFIX} of process {self.pid} within {timeout} s; {self.log}")
            time.sleep(_POLL_INTERVAL)

    def attach(self, ring: str, **options: Any) -> Attachment:
        """Attach to a ring of this run as soon as its socket answers; `options` are those of `daq.attach`."""
        return attach(ring, socket=self.pipeline().socket, **options)

    def status(self) -> dict[str, Any]:
        """Return the object that `/status` of the HTTP server returns."""
        return self.pipeline().status()

    def stop(self, timeout: float | None = None) -> int:
        """Stop the sources, drain the rings, close the files, and return the exit code.

        If that takes longer than `timeout` seconds, the process is ended at once; its files remain valid.
        """
        if self.running:
            stop = _stop_signal()
            self._process.send_signal(stop)
            self._stop_code = 128 + stop
        try:
            return self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the run ends, and return the exit code. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        self._process.wait(timeout)
        return self.code or 0

    def kill(self) -> None:
        """End the process at once. The files of its sinks remain valid."""
        self._process.kill()

    def _check(self) -> None:
        code = self.code
        if self._stop_code is not None and code == self._stop_code:
            raise RunError("daq run was stopped before it had started; `pipeline()` waits for the start", code, self.log)
        if code:
            log = "\n".join(self.log.splitlines()[-_LOG_LINES:])
            meaning = _MEANINGS.get(code, "ended by a signal" if code > 128 else "failed")
            raise RunError(f"daq run exited with {code} ({meaning})" + (f":\n{log}" if log else ""), code, log)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if kind is None:
            self._check()

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.send_signal(_stop_signal())
        for file in (self._output, self._log, self._ready):
            if file is not None:
                file.close()

    def __repr__(self) -> str:
        return f"<Run {self.pid}, {'running' if self.running else f'exit code {self.code}'}>"


def _stop_signal() -> signal.Signals:
    """Return the signal that stops a run.

    A Ctrl-C on the terminal reaches this process and daq. A second SIGINT would end daq at once, but a SIGHUP does not. Under
    nohup, SIGHUP is ignored.
    """
    return signal.SIGINT if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else signal.SIGHUP


def _read(file: IO[bytes]) -> str:
    """Return the whole content without moving the position, which the process shares."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")


def _mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"`{name}` must be a dictionary, not {value!r}")
    return value or {}


def _toml(key: str, value: object) -> str:
    """Return the value of a key in TOML."""
    if isinstance(value, (bool, np.bool_)):
        return str(value).lower()
    if isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(key, entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(key, entry) for entry in value) + "]"
    raise TypeError(f"`set[{key!r}]` must be a number, text, list or dictionary, not {value!r}")
