"""`gpufleet guest`: the script and the line are what a real guest takes (tests/channels/ssh)."""

from pathlib import Path

import pytest

from gpufleet.channels.guest_shell.shell import script
from tests.support.command import gpufleet

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGNh"


def test_the_script_is_printed_as_it_is() -> None:
    done = gpufleet("guest", "script")
    assert (done.returncode, done.stdout) == (0, script())


def test_a_key_gets_one_command(tmp_path: Path) -> None:
    (tmp_path / "agent.pub").write_text(f"{PUBLIC} me@here\n")
    done = gpufleet("guest", "key", str(tmp_path / "agent.pub"))
    assert done.stdout == f'restrict,command="/usr/local/libexec/gpufleet-guest" {PUBLIC} gpufleet\n'


@pytest.mark.parametrize("text", ["", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n", 'ssh-ed25519 A"B x'])
def test_what_is_no_public_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "agent.pub").write_text(text)
    done = gpufleet("guest", "key", str(tmp_path / "agent.pub"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "OpenSSH public key" in done.stderr


def test_a_path_cannot_add_options(tmp_path: Path) -> None:
    (tmp_path / "agent.pub").write_text(PUBLIC)
    done = gpufleet("guest", "key", str(tmp_path / "agent.pub"), "--script", '/x",pty "')
    assert done.returncode == 1
