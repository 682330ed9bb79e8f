"""`gpufleet guest ...`: what a guest is given so that it can be read over SSH."""

from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import CommandError

INSTALLED = "/usr/local/libexec/gpufleet-guest"
"""Where the documentation puts the script in a guest."""

guest_app = typer.Typer(no_args_is_help=True, help="What a virtual machine needs to be read from inside.")

PublicKey = Annotated[Path, typer.Argument(metavar="PUBLIC_KEY", help="Public half of the agent's key.")]
Script = Annotated[str, typer.Option("--script", metavar="PATH", help="Where the script is in the guest.")]


@guest_app.command()
def script() -> None:
    """Print the one command that the agent's key may run in a guest (POSIX shell, read-only)."""
    from gpufleet.channels.guest_shell.shell import script as text

    print(text(), end="")


@guest_app.command()
def key(public_key: PublicKey, script: Script = INSTALLED) -> None:
    """Print the line of authorized_keys that lets a key run that command and nothing else."""
    from gpufleet.channels.ssh.target import is_key

    try:
        words = public_key.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{public_key}: {error}") from error
    if not is_key(" ".join(words[:2])):
        raise CommandError(f"{public_key} is no OpenSSH public key, such as ssh-keygen writes into NAME.pub")
    if any(character in script for character in '"\\\n'):
        raise CommandError(f"{script!r} cannot be written into authorized_keys")
    print(f'restrict,command="{script}" {words[0]} {words[1]} gpufleet')
