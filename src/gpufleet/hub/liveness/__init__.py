"""Liveness of senders, machines and views, measured only in time during which the hub ingested."""
