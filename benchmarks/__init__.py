"""Measurements: `python -m benchmarks.NAME`. The last line that each prints is one JSON object."""
