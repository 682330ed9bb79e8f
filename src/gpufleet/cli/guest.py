"""`gpufleet guest`: prints the files that a guest needs to be read over SSH."""

from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import CommandError

INSTALLED = "/usr/local/libexec/gpufleet-guest"
"""Path of the script in a guest, as in the documentation."""

guest_app = typer.Typer(no_args_is_help=True, help="Print files that a virtual machine needs to be read over SSH.")

PublicKey = Annotated[Path, typer.Argument(metavar="PUBLIC_KEY", help="File with the agent's public key.")]
Script = Annotated[str, typer.Option("--script", metavar="PATH", help="Path of the script in the guest.")]
Bench = Annotated[
    bool, typer.Option("--bench", help="Also permit measurements with fio, perftest and nvbandwidth, for captures.")
]


@guest_app.command()
def script() -> None:
    """Print the only command that the agent's key may run in a guest (POSIX shell, read-only)."""
    from gpufleet.channels.guest_shell.shell import script as text

    print(text(), end="")


@guest_app.command()
def key(public_key: PublicKey, script: Script = INSTALLED, bench: Bench = False) -> None:
    """Print the authorized_keys line that restricts a key to the script."""
    from gpufleet.channels.ssh.target import is_host_key

    try:
        fields = public_key.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{public_key}: {error}") from error
    if not is_host_key(" ".join(fields[:2])):
        raise CommandError(f"{public_key} is not an OpenSSH public key, which ssh-keygen writes to NAME.pub")
    if any(character in script for character in '"\\\n'):
        raise CommandError(f"{script!r} cannot be used in authorized_keys: remove quotes, backslashes and newlines")
    command = f"{script} bench" if bench else script
    print(f'restrict,command="{command}" {fields[0]} {fields[1]} gpufleet')
