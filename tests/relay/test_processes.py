"""Agent, relay and hub as processes that are killed with SIGKILL."""

import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from tests.e2e.conftest import Site
from tests.fakes.batches import body
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.profiles import examples
from tests.support.store_folders import copy_empty_store
from tests.support.subjects import COUNT_SAMPLES
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(300)

BATCHES = examples(300, 600)
KILLS = examples(2, 4)
"""Kills of the relay and the hub, in turn."""

BASE = time.time_ns() - 3600 * 10**9
"""Time one hour before the test, within the hub's retention."""


class Relayed(Site):
    """Setup with a relay between agent and hub."""

    def __init__(self, folder: Path) -> None:
        copy_empty_store(folder / "state" / "hub" / "store")
        super().__init__(folder)
        self.relay_port = free_port()
        self.relay_url = f"http://127.0.0.1:{self.relay_port}"

    def start_relay(self, **env: str) -> Gpufleet:
        """Start the relay and wait until it accepts batches."""
        relay = Gpufleet(
            [
                "hub",
                "--relay-to",
                self.hub_url,
                "--listen",
                f"127.0.0.1:{self.relay_port}",
                "--state",
                str(self.folder / "relay"),
            ],
            self.folder / "relay.log",
            env,
        )
        self._running.append(relay)
        relay.wait_for(f"{self.relay_url}/healthz")
        return relay

    def start_agent_at_relay(self) -> Gpufleet:
        agent = self._start(
            "agent",
            "--config",
            str(self.folder / "agent.toml"),
            "--hub",
            self.relay_url,
            "--listen",
            f"127.0.0.1:{self.agent_port}",
            "--state",
            str(self.state),
        )
        agent.wait_for(f"{self.agent_url}/readyz")
        return agent


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Relayed]:
    setup = Relayed(tmp_path)
    yield setup
    setup.stop()


def post(url: str, content: bytes) -> int:
    request = urllib.request.Request(f"{url}/v1/batches", data=content, headers={"Content-Type": CONTENT_TYPE})
    try:
        with urllib.request.urlopen(request, timeout=10 * PATIENCE) as answer:
            return int(answer.status)
    except OSError:
        return 0


def gauge(url: str, name: str) -> float:
    found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", get_text(f"{url}/metrics"), re.MULTILINE)
    assert found, name
    return float(found[1])


def test_acknowledged_batches_are_stored_once_after_kills(way: Relayed) -> None:
    acknowledged: list[int] = []
    stopping = threading.Event()

    def run() -> None:
        for seq in range(1, BATCHES + 1):
            content = body(seq, BASE + seq * 10**9, gpus=0)
            while not stopping.is_set() and post(way.relay_url, content) != 200:
                stopping.wait(0.05)
            acknowledged.append(seq)

    hub, relay = way.start_hub(), way.start_relay()
    poster = threading.Thread(target=run, daemon=True)
    poster.start()
    try:
        for share in range(1, KILLS + 1):
            enough = share * BATCHES // (KILLS + 1)
            wait_until(lambda enough=enough: len(acknowledged) >= enough, seconds=60, what="batches")  # type: ignore[misc]
            if share % 2:
                relay.kill()
                relay = way.start_relay()
            else:
                hub.kill()
                hub = way.start_hub()
        poster.join(timeout=90)
        assert acknowledged == list(range(1, BATCHES + 1))
        wait_until(lambda: gauge(way.relay_url, "gpufleet_relay_wal_records") == 0, seconds=90, what="an empty relay")
        wait_until(way.drained, seconds=30, what="a flush of the hub")
        (sender,) = get_json(f"{way.hub_url}/v1/senders")
        assert (sender["sender"], sender["missing"], sender["epochs"][0]["received"]) == ("node-a", 0, BATCHES)
        assert hub.stop() == 0
        assert relay.stop() == 0
    finally:
        stopping.set()
    ((raw, once),) = way.rows(COUNT_SAMPLES)
    assert (raw, once) == (BATCHES, BATCHES)


def test_delivery_resumes_after_all_three_were_killed(way: Relayed) -> None:
    hub, relay, agent = way.start_hub(), way.start_relay(), way.start_agent_at_relay()

    def received() -> int:
        senders = get_json(f"{way.hub_url}/v1/senders")
        return sum(epoch["received"] for sender in senders for epoch in sender["epochs"])

    wait_until(received, what="a first batch")
    for process in (relay, hub, agent):
        process.kill()
    for start in (way.start_hub, way.start_relay, way.start_agent_at_relay):
        start()
    before = received()
    wait_until(lambda: received() >= before + 3, seconds=90, what="more batches")
    (sender,) = get_json(f"{way.hub_url}/v1/senders")
    wait_until(lambda: get_json(f"{way.hub_url}/v1/senders")[0]["missing"] == 0, seconds=30, what="no gap")
    assert sender["sender"] == "node-1"
    (seen,) = get_json(f"{way.relay_url}/v1/senders")
    assert (seen["sender"], seen["missing"], seen["liveness"]["state"]) == ("node-1", 0, "live")
