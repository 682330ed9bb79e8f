"""Measurements: `make bench` runs them all, `python -m benchmarks NAME` one of them."""
