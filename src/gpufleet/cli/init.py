"""`gpufleet config init`: a configuration file to begin with, written whole or not at all."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import CommandError

STDOUT = "-"

Output = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - prints it.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")]


def write_output(text: str, output: str, *, force: bool) -> None:
    """Print the text, or write it to a file that only its owner can read (it may come to hold secrets).

    Raises:
        CommandError: if there is such a file and `force` is false, or it cannot be written; then nothing is changed.
    """
    if output == STDOUT:
        sys.stdout.write(text)
        return
    target = Path(output)
    try:
        _write(text, target, force=force)
    except FileExistsError as error:
        raise CommandError(f"{target} is there already: choose another name, or --force to replace it") from error
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}") from error
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
            target.hardlink_to(fresh)  # fails where there is a file, unlike a rename
    finally:
        fresh.unlink(missing_ok=True)
