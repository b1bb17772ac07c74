"""Benchmarks of the package's own parts: ``python -m sb3_nser.bench replay``."""
