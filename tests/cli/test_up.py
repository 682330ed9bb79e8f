"""`gpufleet up`: the configuration is checked before hub and agent start."""

import re
from pathlib import Path

import pytest

from tests.support.command import gpufleet
from tests.support.processes import Gpufleet, free_port, get_json
from tests.support.waiting import wait_until


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


def test_first_printed_link_is_the_page_of_this_host(tmp_path: Path) -> None:
    hub, agent = free_port(), free_port()
    log = tmp_path / "log"
    command = ["up", "--hub-listen", f"127.0.0.1:{hub}", "--agent-listen", f"127.0.0.1:{agent}"]
    with Gpufleet([*command, "--state", str(tmp_path / "state")], log) as process:
        process.wait_for(f"http://127.0.0.1:{hub}/healthz", 100)
        wait_until(lambda: "/ui/" in log.read_text(), seconds=100, what="the printed links")
        (node,) = get_json(f"http://127.0.0.1:{hub}/v1/nodes")["items"]
        link = next(one for one in re.findall(r"http://\S+", log.read_text()) if "/ui/" in one)
        assert link == f"http://127.0.0.1:{hub}/ui/#/nodes/{node['machine']['id']}"
