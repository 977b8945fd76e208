"""Tests of the package. `python -m unittest discover -s tests -t .` runs them; see README.md."""

import os

# Pipelines of the user, whose sockets may be in this directory, must not be found.
os.environ.pop("XDG_RUNTIME_DIR", None)
