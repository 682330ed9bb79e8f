"""Atomic output of generated text, to a file or standard output."""

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
        _write(text, target, force=force)
    except FileExistsError as error:
        raise CommandError(f"{target} exists: choose another name, or replace it with --force") from error
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror}") from error
    print(f"wrote {target}")


def _write(text: str, target: Path, *, force: bool) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # mode 0600
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            fresh.replace(target)
        else:
            target.hardlink_to(fresh)  # fails if the file exists, unlike a rename
    finally:
        fresh.unlink(missing_ok=True)
