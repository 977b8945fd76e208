"""Tests of the package. `python -m unittest discover -s tests -t .` runs them; see README.md."""

import os
import signal

# Pipelines of the user, whose sockets may be in this directory, must not be found.
os.environ.pop("XDG_RUNTIME_DIR", None)

# A shell starts background jobs, and nohup starts programs, with signals that are ignored. daq and scripts would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
