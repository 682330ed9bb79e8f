"""The registry: machines, allocations and sequences, in SQLite or PostgreSQL."""
