"""Parsers of kernel files that describe a process. Pure."""
