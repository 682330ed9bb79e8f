"""`gpufleet up`: hub and agent in one command."""

import re
import signal
import subprocess
import sys

import pytest

from tests.e2e.conftest import Site
from tests.support.processes import Gpufleet, get_json
from tests.support.waiting import PATIENCE, wait_until


def up(site: Site) -> Gpufleet:
    listen = ["--hub-listen", f"127.0.0.1:{site.hub_port}", "--agent-listen", f"127.0.0.1:{site.agent_port}"]
    return Gpufleet(["up", "--state", str(site.state), *listen], site.folder / "up.log", site.driver.environment)


@pytest.mark.timeout(240)
def test_up_serves_its_urls_and_refuses_a_second_process(site: Site) -> None:
    with up(site) as process:
        wait_until(lambda: "Ctrl-C" in process.log.read_text(), seconds=100, what="the greeting")
        greeting = process.log.read_text()

        urls = re.findall(r"  (http://\S+)$", greeting, re.MULTILINE)
        assert len(urls) == 7
        for url in urls:
            process.wait_for(url)
        answer = get_json(next(url for url in urls if "allocations" in url))
        assert answer["source"] == "host_local_probe"
        assert answer["aggregate"]["coverage"] == "8 of 8 devices"

        arguments = ["up", "--state", str(site.state), "--hub-listen", "127.0.0.1:0"]
        second = subprocess.run(
            [sys.executable, "-m", "gpufleet.cli.main", *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert second.returncode == 1
        assert second.stderr.startswith("gpufleet: ")
        assert "Traceback" not in second.stderr

        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(timeout=30 * PATIENCE) == 0
