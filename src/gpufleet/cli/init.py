"""Atomic output of generated files, and of text to a file or standard output."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import CommandError

STDOUT = "-"

Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Output file; - prints to standard output.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def write_output(text: str, output: str, *, force: bool) -> None:
    """Print the text, or write it to a file that only its owner can read, because users may add secrets to it.

    Raises:
        CommandError: if the file exists and `force` is false, or if it cannot be written. Nothing is changed then.
    """
    if output == STDOUT:
        sys.stdout.write(text)
        return
    target = Path(output)
    try:
        place_file(text.encode(), target, force=force)
    except FileExistsError as error:
        raise CommandError(f"{target} exists: choose another name, or replace it with --force") from error
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror}") from error
    print(f"wrote {target}")


def place_file(content: bytes, target: Path, *, force: bool, mode: int = 0o600, group: int | None = None) -> None:
    """Create a file atomically, or replace it with `force`. No other user can read it before `mode` is set.

    Raises:
        FileExistsError: if the file exists and `force` is false.
        OSError: if it cannot be written. Nothing is changed then.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # mode 0600
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if group is not None:
                os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if force:
            fresh.replace(target)
        else:
            target.hardlink_to(fresh)  # fails if the file exists, unlike a rename
    finally:
        fresh.unlink(missing_ok=True)
