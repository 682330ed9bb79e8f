"""Checks of what a node needs, each with what it proves and how to mend it."""
