"""Measured against the peers in one run: `python -m benchmarks`, and `python -m benchmarks.gpu`."""
