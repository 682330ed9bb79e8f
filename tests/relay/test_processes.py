"""Agent, relay and hub as real processes, each killed without warning."""

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, pack
from tests.e2e.conftest import Way
from tests.fakes.batches import body
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

BATCHES = 600
BASE = time.time_ns() - 3600 * 10**9
"""Of late: a hub keeps no samples that are older than its retention."""


class Relayed(Way):
    """A way with a relay in its middle."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.relay_port = free_port()
        self.relay_url = f"http://127.0.0.1:{self.relay_port}"

    def start_relay(self, **env: str) -> Gpufleet:
        """Start the relay and wait until it takes batches."""
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
    made = Relayed(tmp_path)
    yield made
    made.stop()


def post(url: str, content: bytes, content_type: str = CONTENT_TYPE) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}/v1/batches", data=content, headers={"Content-Type": content_type})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, None


def gauge(url: str, name: str) -> float:
    found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", get_text(f"{url}/metrics"), re.MULTILINE)
    assert found, name
    return float(found[1])


def test_every_acknowledged_batch_is_in_the_store_once_whoever_is_killed(way: Relayed) -> None:
    acknowledged: list[int] = []
    gone = threading.Event()

    def run() -> None:
        for seq in range(1, BATCHES + 1):
            content = body(seq, BASE + seq * 10**9, gpus=0)
            while not gone.is_set() and post(way.relay_url, content)[0] != 200:
                gone.wait(0.05)
            acknowledged.append(seq)

    hub, relay = way.start_hub(), way.start_relay()
    poster = threading.Thread(target=run, daemon=True)
    poster.start()
    try:
        for share in (1, 2, 3, 4):
            wait_until(lambda share=share: len(acknowledged) >= share * BATCHES // 5, seconds=60, what="batches")  # type: ignore[misc]
            if share % 2:
                relay.kill()
                relay = way.start_relay()
            else:
                hub.kill()
                hub = way.start_hub()
        poster.join(timeout=90)
        assert acknowledged == list(range(1, BATCHES + 1))
        wait_until(lambda: gauge(way.relay_url, "gpufleet_relay_wal_records") == 0, seconds=90, what="an empty relay")
        wait_until(way.drained, seconds=30, what="the hub to have flushed")
        (sender,) = get_json(f"{way.hub_url}/v1/senders")
        assert (sender["sender"], sender["missing"], sender["epochs"][0]["received"]) == ("node-a", 0, BATCHES)
        assert hub.stop() == 0
        assert relay.stop() == 0
    finally:
        gone.set()
    ((raw, once),) = way.rows("SELECT count(), uniqExact(machine, view, reader, lane, measured_at) FROM samples")
    assert (raw, once) == (BATCHES, BATCHES)


def test_an_agents_readings_come_through_though_each_of_the_three_is_killed(way: Relayed) -> None:
    hub, relay, agent = way.start_hub(), way.start_relay(), way.start_agent_at_relay()

    def received() -> int:
        senders = get_json(f"{way.hub_url}/v1/senders")
        return sum(epoch["received"] for sender in senders for epoch in sender["epochs"])

    wait_until(received, what="a first batch")
    for kill, start in (
        (relay.kill, way.start_relay),
        (hub.kill, way.start_hub),
        (agent.kill, way.start_agent_at_relay),
    ):
        kill()
        start()
        before = received()
        wait_until(lambda before=before: received() >= before + 3, seconds=90, what="more batches")  # type: ignore[misc]
    (sender,) = get_json(f"{way.hub_url}/v1/senders")
    wait_until(lambda: get_json(f"{way.hub_url}/v1/senders")[0]["missing"] == 0, seconds=30, what="no gap")
    assert sender["sender"] == "node-1"
    (seen,) = get_json(f"{way.relay_url}/v1/senders")
    assert (seen["sender"], seen["missing"], seen["liveness"]["state"]) == ("node-1", 0, "live")


def test_while_the_next_hub_is_away_the_relay_takes_what_it_may_hold_and_then_says_503(way: Relayed) -> None:
    env = {"GPUFLEET_HUB_INGEST__WAL_MAX_BYTES": str(1 << 17), "GPUFLEET_HUB_INGEST__MAX_BODY_BYTES": str(1 << 16)}
    way.start_relay(**env)
    taken = 0
    while (answer := post(way.relay_url, body(taken + 1, BASE + taken, gpus=0)))[0] == 200:
        taken += 1
    assert answer[0] == 503
    assert answer[1]["error"] == "log_full"
    assert taken > 100
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get_text(f"{way.relay_url}/readyz")
    way.start_hub()
    wait_until(lambda: gauge(way.relay_url, "gpufleet_relay_wal_records") == 0, seconds=90, what="an empty relay")
    assert post(way.relay_url, body(taken + 1, BASE + taken, gpus=0))[0] == 200
    wait_until(lambda: get_json(f"{way.hub_url}/v1/senders"), what="a flush")
    wait_until(
        lambda: get_json(f"{way.hub_url}/v1/senders")[0]["epochs"][0]["received"] == taken + 1, what="every batch"
    )


def test_a_relay_answers_as_a_hub_does_and_for_nothing_else(way: Relayed) -> None:
    way.start_hub()
    way.start_relay()
    assert post(way.relay_url, b"nonsense")[0] == 400
    assert post(way.relay_url, body(1, BASE, cluster="elsewhere"))[0] == 403
    assert post(way.relay_url, body(1, BASE)) == (200, {"status": "accepted", "seq": 1})
    assert post(way.relay_url, body(1, BASE)) == (200, {"status": "duplicate", "seq": 1})
    status, answer = post(way.relay_url, pack([body(2, BASE), b"nonsense", body(1, BASE)]), BUNDLE_CONTENT_TYPE)
    assert status == 200
    assert [one["status"] for one in answer["answers"]] == [200, 400, 200]
    assert [one.get("result") for one in answer["answers"]] == ["accepted", None, "duplicate"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        get_json(f"{way.relay_url}/v1/allocations")
    with caught.value as error:
        assert error.code == 404
        assert "this is a relay" in json.load(error)["detail"]
    for path in ("/healthz", "/readyz", "/v1/senders"):
        assert get_json(way.relay_url + path)


def test_relays_may_stand_in_a_row(way: Relayed, tmp_path: Path) -> None:
    way.start_hub()
    way.start_relay()
    port = free_port()
    arguments = ["hub", "--relay-to", way.relay_url, "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path / "far")]
    with Gpufleet(arguments, tmp_path / "far.log") as far:
        far.wait_for(f"http://127.0.0.1:{port}/readyz")
        for seq in range(1, 30):
            assert post(f"http://127.0.0.1:{port}", body(seq, BASE + seq, gpus=0))[0] == 200
        wait_until(lambda: get_json(f"{way.hub_url}/v1/senders"), what="a flush")
        wait_until(lambda: get_json(f"{way.hub_url}/v1/senders")[0]["epochs"][0]["received"] == 29, what="all of them")


def test_relays_in_a_circle_keep_what_they_were_given(way: Relayed) -> None:
    (way.folder / "other").mkdir()
    other = Relayed(way.folder / "other")
    way.hub_url, other.hub_url = other.relay_url, way.relay_url
    try:
        way.start_relay()
        other.start_relay()
        assert post(way.relay_url, body(1, BASE))[0] == 200
        log = other.folder / "relay.log"
        wait_until(lambda: "this relay posts to itself" in log.read_text(), what="the log to say so")
        assert gauge(other.relay_url, "gpufleet_relay_wal_records") == 1
        assert gauge(other.relay_url, "gpufleet_relay_forwarded_batches_total") == 0
    finally:
        other.stop()


def test_a_relay_that_posts_to_itself_keeps_what_it_was_given(way: Relayed) -> None:
    way.hub_url = way.relay_url
    way.start_relay()
    assert post(way.relay_url, body(1, BASE))[0] == 200
    log = way.folder / "relay.log"
    wait_until(lambda: "this relay posts to itself" in log.read_text(), what="the log to say so")
    assert gauge(way.relay_url, "gpufleet_relay_wal_records") == 1
    assert gauge(way.relay_url, "gpufleet_relay_forwarded_batches_total") == 0
