"""The registry: clusters, machines, allocations and sequence numbers, in SQLite or PostgreSQL.

One hub process uses one registry: the machines are matched in memory. Every test of it runs on both.
"""
