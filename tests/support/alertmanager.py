"""Real Alertmanager on loopback, in its own folder."""

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes import answers, free_port
from tests.support.waiting import PATIENCE, wait_until

CONFIG = """
route:
  receiver: test
  group_by: ['...']
  group_wait: 100ms
  group_interval: 1s
  repeat_interval: 1h
receivers:
- name: test
  webhook_configs:
  - url: {url}
    send_resolved: true
"""


ASSETS = b"/usr/share/prometheus/alertmanager"
"""Folder of templates that is compiled into Debian's program."""


class Alertmanager(NamedTuple):
    """Alertmanager with its root URL."""

    url: str

    def alerts(self) -> list[Any]:
        """Return the alerts that fire."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10 * PATIENCE) as answer:
            found: list[Any] = json.load(answer)
            return found


@contextlib.contextmanager
def alertmanager(program: Path, folder: Path, notified: str) -> Iterator[Alertmanager]:
    """Run an Alertmanager that notifies a URL of every alert."""
    port = free_port()
    folder.mkdir(parents=True)
    (folder / "alertmanager.yml").write_text(CONFIG.format(url=notified))
    url = f"http://127.0.0.1:{port}"
    copied = folder / "alertmanager"
    # The program is not installed: a copy reads its templates from its working directory.
    copied.write_bytes(program.read_bytes().replace(ASSETS, b".".ljust(len(ASSETS), b"/")))
    copied.chmod(0o755)
    command = [
        str(copied),
        f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    log = folder / "log"
    with log.open("wb") as sink:
        assets = program.parents[1] / "share" / "prometheus" / "alertmanager"
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, cwd=assets)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, f"{program} ended:\n{log.read_text()[-3000:]}"
            return answers(f"{url}/-/ready")

        wait_until(is_ready, seconds=40, what="the Alertmanager to be ready")
        yield Alertmanager(url)
    finally:
        process.kill()
        process.wait(timeout=20 * PATIENCE)
