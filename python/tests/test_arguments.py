"""Wrong arguments of the public functions: the class of the error, and that it names the argument and the value."""

from __future__ import annotations

import datetime
import tempfile
import unittest
from pathlib import Path
from typing import Any, Callable

import numpy as np

import daq

from .fake_daemon import FakeDaemon

FRAME = np.zeros((8, 2), "<i2")
NAT = np.datetime64("NaT", "ns")


class ArgumentsTest(unittest.TestCase):
    """One fake daemon per test."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name)
        self.daemon = FakeDaemon(directory.name)
        self.addCleanup(self.daemon.stop)

    def attach(self, ring: Any = "adc", **options: Any) -> daq.Attachment:
        attached = daq.attach(ring, state_dir=self.path, **options)
        self.addCleanup(attached.close)
        return attached

    def produce(self, source: Any = "flags", **options: Any) -> daq.Producer:
        producer = daq.produce(source, state_dir=self.path, **options)
        self.addCleanup(producer.close)
        return producer

    def check(self, call: Callable[..., Any], *cases: tuple[type[Exception], str, Any]) -> None:
        """Check that `call(value)` raises this class with this text for each value."""
        for kind, text, value in cases:
            with self.subTest(value=value), self.assertRaisesRegex(kind, text):
                call(value)

    def test_where_reading_begins(self) -> None:
        self.check(
            lambda at: self.attach(at=at),
            (ValueError, "`at`.*'old'", "old"),
            (TypeError, "`at`.*5", 5),
            (TypeError, "`at`.*None", None),
            (TypeError, "`at`.*2020", datetime.date(2020, 1, 1)),
            (ValueError, "`at`.*NaT", NAT),
            (ValueError, "`at`.*years", np.datetime64("9999-01-01")),
        )

    def test_which_frames_are_returned(self) -> None:
        self.check(
            lambda every: self.attach(every=every),
            (ValueError, "`every`.*0", 0),
            (TypeError, "`every`.*1.0; `interval`", 1.0),
            (TypeError, "`every`.*'1 s'; `interval`", "1 s"),
            (TypeError, "`every`.*3.*`interval`", np.timedelta64(3, "ms")),
            (TypeError, "`every`.*True", True),
            (TypeError, "`every`.*None", None),
        )
        self.check(
            lambda interval: self.attach(interval=interval),
            (ValueError, "`interval`.*1.2.3 s", "1.2.3 s"),
            (ValueError, "`interval`.*nan", float("nan")),
            (ValueError, "`interval`.*-1", np.timedelta64(-1, "s")),
            (TypeError, "`interval`.*True", True),
            (TypeError, "`interval`.*None", None),
        )
        self.attach(every=np.int64(3))
        for interval in ("0.5 s", 2, np.int64(3), np.timedelta64(3, "ms"), np.float32(0.5), datetime.timedelta(seconds=1)):
            self.attach(interval=interval)

    def test_names_flags_and_paths(self) -> None:
        self.check(self.attach, (TypeError, "`ring`.*5", 5), (TypeError, "`ring`.*None", None), (daq.AttachError, "''", ""))
        for name in ("guarantee", "newest", "copy"):
            self.check(lambda value, name=name: self.attach(**{name: value}), (TypeError, f"`{name}`.*'no'", "no"))
        self.check(lambda name: self.attach(pipeline=name), (TypeError, "`pipeline`.*5", 5), (daq.AttachError, "'x'.*adc", "x"))
        self.check(daq.list, (TypeError, "`state_dir`.*5", 5))
        self.check(lambda path: daq.attach("adc", socket=path), (TypeError, "`socket`.*5", 5))
        self.check(self.produce, (TypeError, "`source`.*5", 5))
        self.check(lambda like: self.produce(like=like), (TypeError, "`like`.*5", 5))
        self.check(
            lambda slots: self.produce(slots=slots),
            (TypeError, "`slots`.*'x'", "x"),
            (TypeError, "`slots`.*1.5", 1.5),
            (ValueError, "`slots`.*2000", 2000),
            (ValueError, "`slots`.*-1", -1),
        )

    def test_timeouts(self) -> None:
        for wait in (self.attach().read, self.produce().flush):
            self.check(
                wait, (TypeError, "`timeout`.*'x'", "x"), (TypeError, "`timeout`", True), (ValueError, "`timeout`", np.nan)
            )

    def test_frames_that_are_written(self) -> None:
        producer = self.produce()
        self.check(
            producer.write,
            (ValueError, r"\(8, 2\), not \(\)", None),
            (TypeError, "int16.*float64", FRAME.astype(float)),
            (TypeError, "int16.*complex", FRAME.astype(complex)),
            (ValueError, "int16.*32768 to 32768", np.add(FRAME, 16384, dtype=int) * 2),
            (ValueError, "int16.*-32769", FRAME.astype(int) - [0, 32769]),
            (ValueError, "int16.*40000", FRAME.astype("u2") + 40000),
        )
        producer.write(FRAME.astype(int) - 32768)
        self.check(
            lambda like: producer.write(FRAME, like),
            (TypeError, "`like`.*ndarray.*time=", FRAME),
            (TypeError, "`like`.*datetime64.*time=", np.datetime64(5, "ns")),
        )
        self.check(
            lambda time: producer.write(FRAME, time=time),
            (TypeError, "`time`.*5", 5),
            (ValueError, "`time`.*NaT", NAT),
            (ValueError, "`time`.*1960", np.datetime64("1960-01-01")),
        )
        self.check(lambda clock: producer.write(FRAME, clock=clock), (ValueError, "`clock`.*hardware.*'x'", "x"))
        self.daemon.publish(bytes(32))
        frame = next(self.attach(at="oldest"))
        with self.assertRaisesRegex(ValueError, "either `like` or `time`"):
            producer.write(FRAME, frame, time=np.datetime64(5, "ns"))
        self.assertEqual(producer.written, 1)
        producer.write(FRAME, time=datetime.datetime(1970, 1, 2, tzinfo=datetime.timezone.utc))
        self.assertTrue(producer.flush(60))
        self.assertEqual(self.daemon.produced[-1][1], 86400 * 10**9)

    def test_a_closed_producer_accepts_no_frame(self) -> None:
        with self.produce() as producer:
            producer.write(FRAME)
        for call in (lambda: producer.write(FRAME), producer.flush):
            with self.assertRaisesRegex(ValueError, "flags was closed.*inside `with"):
                call()
        producer.close()

    def test_members_of_a_frame(self) -> None:
        self.daemon.publish(bytes(32))
        frame = next(self.attach(at="oldest"))
        self.check(lambda name: frame[name], (KeyError, "'nope'.*antenna", "nope"))
        self.check(frame.release, (TypeError, "`stream`.*'x'", "x"))

    def test_sockets_that_are_none_of_a_pipeline(self) -> None:
        self.check(
            lambda path: daq.attach("adc", socket=path),
            (daq.AttachError, "absent.*running pipeline", self.path / "absent"),
            (daq.AttachError, "test_arguments.*running pipeline", __file__),
        )
        self.daemon.answer = b"[1]"
        self.check(lambda path: daq.attach("adc", socket=path), (daq.AttachError, "not the socket", self.daemon.path))
        self.assertEqual(daq.list(self.path), [])

    def test_addresses_of_http_servers(self) -> None:
        self.check(
            lambda http: daq.status(http=http),
            (TypeError, "`http`.*5", 5),
            (daq.AttachError, "127.0.0.1:1/status", "127.0.0.1:1"),
            (daq.AttachError, "x y", "x y"),
            (daq.AttachError, "https://127.0.0.1:1/status", "https://127.0.0.1:1"),
        )

    def test_options_of_a_run(self) -> None:
        def start(**options: Any) -> daq.Run:
            return daq.run("x.toml", **{"binary": "/bin/true", **options})

        self.check(lambda file: daq.run(file, binary="/bin/true"), (TypeError, "`configurations`.*5", 5))
        wrong = {"set": ["a"], "frames": 5, "duration": 5, "drain": 1.5, "binary": 5, "log": "x", "state_dir": 5}
        for name, value in {**wrong, "arguments": "--for 5s"}.items():
            with self.subTest(name), self.assertRaisesRegex(TypeError, f"`{name}`"):
                start(**{name: value})
        for name, option in (("set", {"a.b": None}), ("frames", {"raw": 1.5})):
            with self.subTest(name), self.assertRaisesRegex(TypeError, rf"`{name}\["):
                start(**{name: option})
        with self.assertRaisesRegex(daq.RunError, "cannot find the program 'no-such-program'"):
            start(binary="no-such-program")
        with self.assertRaisesRegex(daq.RunError, "cannot start .*absent"):
            start(cwd=self.path / "absent")

    def script(self, text: str) -> Path:
        """Return a shell script in place of the program."""
        path = self.path / "script.sh"
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def test_a_run_that_is_stopped_before_its_start_is_no_crash(self) -> None:
        script = self.script("exec sleep 60")
        with self.assertRaisesRegex(daq.RunError, "stopped before it had started"), daq.run(binary=script, wait=False):
            pass
        run = daq.run(binary=script, wait=False)
        run.kill()
        with self.assertRaisesRegex(daq.RunError, "137 .ended by a signal"), run:
            pass

    def test_a_run_is_returned_when_it_is_ready_or_has_ended(self) -> None:
        # The last argument is the file descriptor.
        report = 'for n in "$@"; do :; done; echo ready > /proc/self/fd/$n'
        with daq.run(binary=self.script(f"trap 'exit 0' HUP INT\n{report}\nwhile sleep 0.1; do :; done")) as run:
            self.assertTrue(run.running)
            run.wait_ready()
        self.assertEqual(daq.run(binary=self.script("exit 0")).code, 0)
        with self.assertRaisesRegex(daq.RunError, "78 .wrong configuration"):
            daq.run(binary=self.script("exit 78"))
        run = daq.run(binary=self.script("exec sleep 60"), wait=False)
        with self.assertRaisesRegex(daq.AttachError, "is not ready after 0.01 s"):
            run.wait_ready(0.01)
        run.kill()
        with self.assertRaisesRegex(daq.RunError, "137 .ended by a signal"):
            run.wait_ready()

    def test_values_of_a_configuration_become_toml(self) -> None:
        script = self.script('for a in "$@"; do echo "$a"; done')
        values = {"a": "text", "b": True, "c": 5, "d": np.float64(0.5), "e": ["x", 1], "f": {"g": False}, "h": float("inf")}
        run = daq.run(set=values, binary=script)
        run.wait(60)
        run._output.seek(0)
        found = [line for line in run._output.read().decode().splitlines() if "=" in line]
        self.assertEqual(found, ["a=text", "b=true", "c=5", "d=0.5", 'e=["x", 1]', 'f={"g" = false}', "h=inf"])

    def test_packed_bytes(self) -> None:
        unpack: Any = daq.unpack
        self.check(
            lambda data: unpack(data, "uint12p"),
            (TypeError, "`data`.*float64", [1.5, 2.0, 3.0]),
            (ValueError, "`data`.*-1 to 3", [-1, 2, 3]),
            (ValueError, "`data`.*300", np.array([1, 300, 3])),
            (ValueError, "2 bytes", b"ab"),
        )
        self.check(lambda name: unpack(b"abc", name), (TypeError, "`sample_type`.*5", 5), (ValueError, "'int16'", "int16"))
        self.assertEqual(unpack(b"\x12\x34\x56", "uint12pmsb").tolist(), [0x123, 0x456])
        self.check(lambda name: daq.Layout(name).dtype, (ValueError, "unknown sample type 'int128'", "int128"))
