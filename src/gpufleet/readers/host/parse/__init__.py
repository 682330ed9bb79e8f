"""Parsers of kernel text: pure and bounded. They raise only `WireError`, which names the file."""
