"""The program that tests start."""

from __future__ import annotations

import os
import unittest


def binary() -> str:
    """Return the program that `DAQ_TEST_BINARY` names; skips the test without one."""
    path = os.environ.get("DAQ_TEST_BINARY")
    if not path:
        raise unittest.SkipTest("DAQ_TEST_BINARY does not name a program")
    return path
