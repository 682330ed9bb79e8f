"""A hub process with the embedded store, killed with SIGKILL."""

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gpufleet.codecs.batch import CONTENT_TYPE
from tests.fakes.batches import body
from tests.support.processes import Gpufleet, free_port, get_json
from tests.support.profiles import examples
from tests.support.store_folders import copy_empty_store
from tests.support.waiting import PATIENCE, wait_until

BATCHES = examples(200, 400)
KILLS = examples(2, 4)

COUNT_ROWS = """
import sys
from gpufleet.stores.clickhouse.store import ClickHouseStore

store = ClickHouseStore.open(sys.argv[1])
store.migrate()
print(store.stats()["samples"].rows)
store.close()
"""


class Poster(threading.Thread):
    """Posts batches in order and repeats each until it is acknowledged, as an agent does."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.acknowledged = 0
        self.base = time.time_ns() - BATCHES * 10**9

    def run(self) -> None:
        for seq in range(1, BATCHES + 1):
            content = body(seq, self.base + seq * 10**9, gpus=0)
            wait_until(lambda content=content: self._post(content), seconds=90, what=f"acknowledgement of batch {seq}")  # type: ignore[misc]
            self.acknowledged = seq

    def _post(self, content: bytes) -> bool:
        request = urllib.request.Request(f"{self.url}/v1/batches", data=content, headers={"Content-Type": CONTENT_TYPE})
        try:
            with urllib.request.urlopen(request, timeout=10 * PATIENCE) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def start(state: Path, port: int, log: Path) -> Gpufleet:
    store = state / "hub" / "store"
    if not store.exists():
        copy_empty_store(store)
    hub = Gpufleet(["hub", "--listen", f"127.0.0.1:{port}", "--state", str(state)], log)
    try:
        hub.wait_for(f"http://127.0.0.1:{port}/healthz")
    except AssertionError:
        hub.kill()
        raise
    return hub


def test_acknowledged_rows_are_stored_once_after_kills(tmp_path: Path) -> None:
    state, log, port = tmp_path / "state", tmp_path / "hub.log", free_port()
    url = f"http://127.0.0.1:{port}"
    hub = start(state, port, log)
    poster = Poster(url)
    poster.start()
    try:
        for kill in range(1, KILLS + 1):
            wait_until(
                lambda kill=kill: poster.acknowledged >= kill * BATCHES // (KILLS + 1),  # type: ignore[misc]
                seconds=90,
                what="acknowledged batches",
            )
            hub.kill()
            hub = start(state, port, log)
        poster.join(timeout=90)
        assert poster.acknowledged == BATCHES
        (sender,) = wait_for_senders(url)
        assert (sender["missing"], sender["epochs"][0]["received"]) == (0, BATCHES)
        assert hub.stop() == 0
    finally:
        hub.kill()
    dsn = f"chdb://{state / 'hub' / 'store'}"
    counted = subprocess.run(
        [sys.executable, "-c", COUNT_ROWS, dsn], capture_output=True, text=True, timeout=60 * PATIENCE
    )
    assert counted.stdout.strip() == str(BATCHES), counted.stderr + log.read_text()


def wait_for_senders(url: str) -> list[dict[str, Any]]:
    wait_until(lambda: get_json(f"{url}/v1/machines")["items"], what="the first flush")
    found: list[dict[str, Any]] = get_json(f"{url}/v1/senders")
    return found


def test_hub_listens_on_other_addresses_only_if_configured(tmp_path: Path) -> None:
    hub = Gpufleet(["hub", "--listen", "0.0.0.0:0", "--state", str(tmp_path)], tmp_path / "log")
    assert hub.process.wait(timeout=30 * PATIENCE) == 2
    assert "insecure_listen" in (tmp_path / "log").read_text()


def test_second_hub_on_a_folder_exits_with_1(tmp_path: Path) -> None:
    first = start(tmp_path / "state", free_port(), tmp_path / "first.log")
    try:
        second = Gpufleet(
            ["hub", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state")], tmp_path / "second.log"
        )
        assert second.process.wait(timeout=30 * PATIENCE) == 1
    finally:
        first.kill()
