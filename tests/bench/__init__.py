"""Benchmarks, and the tables that they write into docs/results."""
