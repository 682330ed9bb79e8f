"""Ports: the Protocols between the core and its adapters, one file a family."""
