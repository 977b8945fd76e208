"""The program that tests start."""

from __future__ import annotations

import os
import unittest
from pathlib import Path
from typing import Any

import daq


def binary() -> str:
    """Return the program that `DAQ_TEST_BINARY` names; skips the test without one."""
    path = os.environ.get("DAQ_TEST_BINARY")
    if not path:
        raise unittest.SkipTest("DAQ_TEST_BINARY does not name a program")
    return path


def start(directory: Path, configuration: str, **options: Any) -> daq.Run:
    """Start a run in this directory with the state directory `state`; skips the test without a program."""
    program = binary()
    (directory / "daq.toml").write_text(configuration, encoding="utf-8")
    return daq.run("daq.toml", cwd=directory, state_dir="state", binary=program, **options)
