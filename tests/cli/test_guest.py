"""`gpufleet guest`: script and key line (tests/channels/ssh runs both in a real guest)."""

from pathlib import Path

import pytest

from gpufleet.channels.guest_shell.shell import script
from tests.support.command import gpufleet

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGNh"


def test_guest_script_is_printed_unchanged() -> None:
    done = gpufleet("guest", "script")
    assert (done.returncode, done.stdout) == (0, script())


def test_guest_key_is_restricted_to_one_command(tmp_path: Path) -> None:
    (tmp_path / "agent.pub").write_text(f"{PUBLIC} me@here\n")
    done = gpufleet("guest", "key", str(tmp_path / "agent.pub"))
    assert done.stdout == f'restrict,command="/usr/local/libexec/gpufleet-guest" {PUBLIC} gpufleet\n'


@pytest.mark.parametrize("text", ["", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n", 'ssh-ed25519 A"B x'])
def test_invalid_public_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "agent.pub").write_text(text)
    done = gpufleet("guest", "key", str(tmp_path / "agent.pub"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "OpenSSH public key" in done.stderr


def test_script_path_cannot_add_key_options(tmp_path: Path) -> None:
    (tmp_path / "agent.pub").write_text(PUBLIC)
    done = gpufleet("guest", "key", str(tmp_path / "agent.pub"), "--script", '/x",pty "')
    assert done.returncode == 1


def test_key_for_captures_permits_measurements(tmp_path: Path) -> None:
    (tmp_path / "agent.pub").write_text(f"{PUBLIC} me@here\n")
    done = gpufleet("guest", "key", str(tmp_path / "agent.pub"), "--bench")
    assert done.stdout == f'restrict,command="/usr/local/libexec/gpufleet-guest bench" {PUBLIC} gpufleet\n'
