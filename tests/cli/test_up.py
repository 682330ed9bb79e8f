"""`gpufleet up`: the configuration is checked before hub and agent start."""

from pathlib import Path

import pytest

from tests.support.command import gpufleet


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("GPUFLEET_HUB_STATE", "{folder}/file", "state"),
        ("GPUFLEET_HUB_STORE", "clickhouse://host/db?ca={folder}/missing", "store"),
        ("GPUFLEET_AGENT_HUB__TOKEN_FILE", "{folder}/missing", "hub.token_file"),
        ("GPUFLEET_AGENT_STATE", "{folder}/file", "state"),
    ],
)
def test_missing_file_exits_2_with_its_variable(tmp_path: Path, variable: str, value: str, key: str) -> None:
    (tmp_path / "file").touch()
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), variable: value.format(folder=tmp_path)}
    done = gpufleet("up", env=env)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gpufleet: {variable}: {key}")


def test_invalid_address_is_reported_with_its_option(tmp_path: Path) -> None:
    done = gpufleet("up", "--hub-listen", "x", env={"XDG_STATE_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.startswith("gpufleet: --hub-listen: listen")
