"""The registry: clusters, machines, allocations and sequence numbers, in SQLite or PostgreSQL.

Machines are matched in memory, so one registry serves one hub process. Every registry test runs on both databases.
"""
