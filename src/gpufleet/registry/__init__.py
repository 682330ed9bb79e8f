"""The registry: clusters, machines, allocations and sequence numbers, in SQLite or PostgreSQL.

One hub process uses one registry: the machines are matched in memory. Tested on SQLite; the SQL is portable,
and PostgreSQL by DSN is untested.
"""
