"""Handles to the database: an embedded folder or a server."""
