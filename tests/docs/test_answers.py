"""docs/answers.md: its commands run with a real hub."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from tests.fakes.batches import body
from tests.security.guarded import exchange
from tests.support.hub_state import prepare_state
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until
from tests.web.hub.site import now

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")
def test_documented_commands_run(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "hub.toml").write_text(f'listen = "127.0.0.1:{port}"\nstate = "{tmp_path}/state"\n')
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [block.replace("127.0.0.1:8470", f"127.0.0.1:{port}") for block in blocks]
    prepare_state(tmp_path / "state")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with Gpufleet(["hub", "--config", str(tmp_path / "hub.toml")], tmp_path / "log") as hub:
        wait_until(lambda: _request(port, "GET", "/readyz") == 200, seconds=100, what="the hub to be up")
        assert _request(port, "POST", "/v1/batches", body(1, now())) == 200
        wait_until(lambda: b"node-a" in exchange(port, "GET", "/v1/nodes", {}, None, None).body, what="the batch")
        outputs = []
        for command in commands:
            script = command.replace("gpufleet query sql", f"gpufleet query sql --hub http://127.0.0.1:{port}")
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                capture_output=True,
                text=True,
                timeout=100,
                cwd=tmp_path,
                env=environment,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            outputs.append(done.stdout)
        assert hub.stop() == 0
    formats, page, versions, sql = outputs
    assert "node-a" in formats
    assert "ARROW1" not in (tmp_path / "gpus.arrows").read_bytes().decode("latin-1")  # a stream, not a file
    assert "link" not in page.lower()  # one machine: no next page
    assert versions.strip() == "304"
    assert "fleet_latest" in sql
    assert "at,machine,view,code" in sql
    assert (tmp_path / "power.arrows").stat().st_size > 100


def _request(port: int, method: str, path: str, content: bytes | None = None) -> int:
    try:
        return exchange(port, method, path, {"Content-Type": CONTENT_TYPE} if content else {}, content, None).status
    except OSError:
        return 0
