"""`gpufleet config init` and `validate`: permissions, existing files, and reported problems."""

import stat
from pathlib import Path

import pytest

from tests.support.command import gpufleet


@pytest.mark.parametrize("daemon", ["agent", "hub", "cluster-agent"])
def test_printed_configuration_is_valid(daemon: str, tmp_path: Path) -> None:
    done = gpufleet("config", "init", "--for", daemon)
    assert (done.returncode, done.stderr) == (0, "")
    file = tmp_path / "config.toml"
    file.write_text(done.stdout)
    assert gpufleet("config", "validate", "--for", daemon, "--config", str(file)).returncode == 0


def test_configuration_file_is_private(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    done = gpufleet("config", "init", "--output", str(file))
    assert (done.returncode, done.stdout) == (0, f"wrote {file}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == gpufleet("config", "init", "--output", "-").stdout
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("is_link", [False, True])
def test_existing_file_is_not_overwritten(tmp_path: Path, is_link: bool) -> None:
    file = tmp_path / "agent.toml"
    if is_link:
        file.symlink_to("nowhere")
    else:
        file.write_text("cluster = 'mine'\n")
    done = gpufleet("config", "init", "--output", str(file))
    assert done.returncode == 1
    assert str(file) in done.stderr
    assert "--force" in done.stderr
    assert is_link or file.read_text() == "cluster = 'mine'\n"
    assert list(tmp_path.iterdir()) == [file]


def test_force_replaces_file_and_permissions(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text("x")
    file.chmod(0o644)
    assert gpufleet("config", "init", "--for", "hub", "--output", str(file), "--force").returncode == 0
    assert "Configuration of the gpufleet hub" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_missing_output_folder_is_reported(tmp_path: Path) -> None:
    done = gpufleet("config", "init", "--output", str(tmp_path / "none" / "agent.toml"))
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr


def test_files_named_in_the_configuration_must_exist(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f'token_file = "{tmp_path}/none"\n[hub]\nurl = "https://hub:8470"\nca = "{tmp_path}"\n')
    done = gpufleet("config", "validate", "--config", str(file))
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith(f"gpufleet: {file}: token_file: {tmp_path}/none")
    assert second.startswith(f"gpufleet: {file}: hub.ca: {tmp_path}")
    (tmp_path / "none").write_text("x")
    file.write_text(f'token_file = "{tmp_path}/none"\n')
    assert gpufleet("config", "validate", "--config", str(file)).returncode == 0


def test_configuration_of_the_other_daemon_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text('auth = "tokens"\n')
    done = gpufleet("config", "validate", "--config", str(file))
    assert done.returncode == 2
    assert "auth: unknown key" in done.stderr
    assert "--for hub" in done.stderr.splitlines()[-1]
    file.write_text("nonsense = 1\n")
    assert "--for" not in gpufleet("config", "validate", "--config", str(file)).stderr


def test_error_names_the_command_line_option(tmp_path: Path) -> None:
    done = gpufleet("agent", "--hub", "nowhere", "--state", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("gpufleet: --hub: ")
