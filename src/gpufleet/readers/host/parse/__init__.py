"""Kernel text to records: pure, bounded, and `WireError` (naming the file) is all they raise."""
