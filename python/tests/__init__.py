"""Tests of the package. `python -m unittest discover -s tests -t .` runs them; see README.md."""
