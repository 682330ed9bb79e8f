"""Queries: statements of users with views, allowed functions and limits; and the read-only queries of the store."""
