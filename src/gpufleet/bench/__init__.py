"""Benchmark evidence: captures of a machine's performance, and their comparison.

A capture runs fixed commands through two ports, `Files` and `Exec`, so that it works over every channel that has them.
"""
