"""Channels: access to files, commands and streams of a machine, local or remote."""
