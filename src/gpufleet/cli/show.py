"""Printing what a hub answered."""

import sys

import msgspec

from gpufleet.cli.errors import CommandError


def print_json(body: bytes) -> None:
    """Print a JSON document for people.

    Raises:
        CommandError: if it is none.
    """
    try:
        document = msgspec.json.format(body, indent=2)
    except msgspec.DecodeError as error:
        raise CommandError(f"the hub answers something else than JSON: {error}") from error
    sys.stdout.buffer.write(document.rstrip() + b"\n")
