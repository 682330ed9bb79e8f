"""Hub with its store on a server: outages of the server lose nothing and duplicate nothing."""

import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from tests.e2e.conftest import Site
from tests.e2e.test_simulated_fleet import assert_equal_values, current_instant, expected, hub_values, simulate
from tests.support.clickhouse.process import ClickHouse
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(300)

NODES = 2
KEY = "cluster, machine, view, reader, lane, measured_at"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClickHouse]:
    with ClickHouse(tmp_path / "server") as server:
        yield server


def started(site: Site, dsn: str) -> Gpufleet:
    return site.start_hub("--store", dsn)


def sent(site: Site, seed: int) -> tuple[Fleet, int]:
    """Send one pass of a fleet to the hub, and assert that it was acknowledged."""
    text, at = current_instant()
    every = ["--once", "--clusters", "1", "--nodes", str(NODES), "--start", text, "--prefix", f"of{seed}"]
    summary = simulate(*every, "--seed", str(seed), "--hub", site.hub_url)
    assert (summary["made"], summary["acknowledged"], summary["waiting"]) == (NODES, NODES, 0)
    return Fleet(FleetSpec(seed=seed, nodes=NODES, prefix=f"of{seed}")), at


def check_values(site: Site, fleet: Fleet, at: int) -> None:
    wait_until(site.drained, seconds=90, what="the hub to have flushed")
    assert_equal_values(hub_values(site, fleet.cluster_id(1)), expected(fleet, at))


def test_store_server_outages_lose_and_duplicate_nothing(site: Site, server: ClickHouse) -> None:
    dsn = server.make("fleet")
    with started(site, dsn) as hub:
        server.query("SYSTEM STOP MERGES")  # so that duplicates stay visible
        check_values(site, *sent(site, 1))

        server.kill()
        offline = sent(site, 2)
        with pytest.raises(urllib.error.HTTPError) as unanswered:
            site.hub(f"/v1/events?cluster={offline[0].cluster_id(1)}")
        assert unanswered.value.code == 503
        unanswered.value.close()
        log = site.folder / "hub.log"
        wait_until(lambda: "flush failed" in log.read_text(), what="the failed flush in the log")
        server.start()
        server.query("SYSTEM STOP MERGES")
        check_values(site, *offline)

        server.freeze()
        frozen = sent(site, 3)
        server.freeze(thaw=True)
        check_values(site, *frozen)

        server.break_inserts("samples", "after", times=1)
        server.break_inserts("latest", "before", times=100)
        interrupted = sent(site, 4)
        wait_until(lambda: "insert into latest: the server" in log.read_text(), what="an interrupted flush")
        hub.kill()
    server.kill()
    server.start()
    server.query("SYSTEM STOP MERGES")
    with started(site, dsn) as hub:
        check_values(site, *interrupted)
        source = "fleet.samples INNER JOIN fleet.subjects ON samples.subject = subjects.number"
        ((total, distinct),) = server.query(f"SELECT count(), uniqExact({KEY}) FROM {source}")
        assert total == distinct > 0
        state = ["--state", str(site.folder / "second"), "--accept-data-loss"]
        second = Gpufleet(
            ["hub", "--listen", f"127.0.0.1:{free_port()}", *state, "--store", dsn], site.folder / "second.log"
        )
        assert second.process.wait(timeout=60 * PATIENCE) != 0
        assert re.search(r"the hub \w+ on .* writes to this database", second.log.read_text())
        assert "Traceback" not in second.log.read_text() + log.read_text()
        assert hub.stop() == 0
    assert server.query("SELECT count() FROM fleet.writers FINAL WHERE until > now64(9)") == [(0,)]
