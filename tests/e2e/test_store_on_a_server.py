"""A hub with its store on a server: outages of the server lose nothing and duplicate nothing."""

import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from tests.e2e.conftest import Way
from tests.e2e.test_simulated_fleet import agree, answered, expected, now, simulate
from tests.support.clickhouse.process import ClickHouse
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

NODES = 2
KEY = "cluster, machine, view, reader, lane, measured_at"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClickHouse]:
    with ClickHouse(tmp_path / "server") as server:
        yield server


def started(way: Way, dsn: str) -> Gpufleet:
    return way.start_hub("--store", dsn)


def sent(way: Way, seed: int) -> tuple[Fleet, int]:
    """Send one pass of a fleet to the hub, all of it acknowledged."""
    text, at = now()
    every = ["--once", "--clusters", "1", "--nodes", str(NODES), "--start", text, "--prefix", f"of{seed}"]
    summary = simulate(*every, "--seed", str(seed), "--hub", way.hub_url)
    assert (summary["made"], summary["acknowledged"], summary["waiting"]) == (NODES, NODES, 0)
    return Fleet(FleetSpec(seed=seed, nodes=NODES, prefix=f"of{seed}")), at


def check_values(way: Way, fleet: Fleet, at: int) -> None:
    wait_until(way.drained, seconds=90, what="the hub to have flushed")
    agree(answered(way, fleet.cluster_id(1)), expected(fleet, at))


def test_store_server_outages_lose_and_duplicate_nothing(way: Way, server: ClickHouse) -> None:
    dsn = server.make("fleet")
    with started(way, dsn) as hub:
        server.ask("SYSTEM STOP MERGES")  # so that duplicates stay
        check_values(way, *sent(way, 1))

        server.kill()
        away = sent(way, 2)
        with pytest.raises(urllib.error.HTTPError) as unanswered:
            way.hub(f"/v1/gpus?cluster={away[0].cluster_id(1)}")
        assert unanswered.value.code == 503
        unanswered.value.close()
        log = way.folder / "hub.log"
        wait_until(lambda: "flush failed" in log.read_text(), what="the log to say that the store is away")
        server.start()
        server.ask("SYSTEM STOP MERGES")
        check_values(way, *away)

        server.freeze()
        frozen = sent(way, 3)
        server.freeze(thaw=True)
        check_values(way, *frozen)

        server.lose("samples", "after", times=1)
        server.lose("latest", "before", times=100)
        cut = sent(way, 4)
        wait_until(lambda: "insert into latest: the server" in log.read_text(), what="a flush that was cut")
        hub.kill()
    server.kill()
    server.start()
    server.ask("SYSTEM STOP MERGES")
    with started(way, dsn) as hub:
        check_values(way, *cut)
        ((there, distinct),) = server.ask(f"SELECT count(), uniqExact({KEY}) FROM fleet.samples")
        assert there == distinct > 0
        second = Gpufleet(
            ["hub", "--listen", f"127.0.0.1:{free_port()}", "--state", str(way.folder / "second"), "--store", dsn],
            way.folder / "second.log",
        )
        assert second.process.wait(timeout=60) != 0
        assert re.search(r"the hub \w+ on .* writes to this database", second.log.read_text())
        assert "Traceback" not in second.log.read_text() + log.read_text()
        assert hub.stop() == 0
    assert server.ask("SELECT count() FROM fleet.writers FINAL WHERE until > now64(9)") == [(0,)]
