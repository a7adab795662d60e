"""Mutated files of every format, read until something breaks: `python -m benchmarks.fuzz` (see docs/security.md)."""
