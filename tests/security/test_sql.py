"""SQL over HTTP with a real store: admins only, audited, and no statement stops the hub."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.model.access import Role
from tests.fakes.batches import body
from tests.security.daemons import Daemon, under_attack
from tests.security.guarded import Reply
from tests.support.waiting import wait_until
from tests.web.hub.site import now

REFUSED = Path(__file__).parents[1] / "stores" / "clickhouse" / "sql" / "sql_refused.txt"


@pytest.fixture(scope="module")
def hub(daemon_of: Callable[[str, bool], Daemon]) -> Daemon:
    return daemon_of("hub", False)


def query(hub: Daemon, sql: object, token: str | None = None) -> Reply:
    content = json.dumps({"sql": sql}).encode()
    return hub.request("/v1/query", token or hub.token, "POST", content, headers={"Content-Type": "application/json"})


def test_admin_queries_posted_data(hub: Daemon) -> None:
    assert hub.post(body(2_000, now())).status == 200

    def first_device() -> list[list[object]]:
        statement = "SELECT DISTINCT view, uuid FROM fleet_devices WHERE cluster = 'local' ORDER BY view LIMIT 1"
        rows: list[list[object]] = query(hub, statement).document["rows"]
        return rows

    wait_until(first_device, what="the batch to be stored")
    assert first_device() == [["gpu/GPU-0", "GPU-0"]]
    views = hub.request("/v1/query", hub.token).document
    assert {"fleet_latest", "fleet_events"} <= {view["name"] for view in views}


@pytest.mark.parametrize("role", [Role.SENDER, Role.TENANT, Role.OPERATOR])
def test_other_roles_may_not_query(hub: Daemon, role: Role) -> None:
    assert query(hub, "SELECT 1", hub.tokens[role]).status == 403
    assert hub.request("/v1/query", hub.tokens[role]).status == 403


def test_whole_statement_is_audited_on_success_and_error(hub: Daemon) -> None:
    padding = "x" * 8_000
    for statement in (f"SELECT '{padding}', 1 AS end_of_it", "SELECT * FROM samples /* refused */"):
        query(hub, statement)
    newest = hub.request("/v1/audit?limit=2", hub.token).document
    refused, answered = (one["entry"] for one in newest)
    assert (answered["path"], answered["status"], refused["status"]) == ("/v1/query", 200, 400)
    assert answered["detail"].endswith('end_of_it"}')
    assert "/* refused */" in refused["detail"]


def test_invalid_query_document_is_refused(hub: Daemon) -> None:
    bad: list[object] = [None, 1, "x", [], {}, {"sql": 1}, {"sql": "SELECT 1", "settings": {"readonly": 0}}]
    for document in bad:
        content = json.dumps(document).encode()
        reply = hub.request("/v1/query", hub.token, "POST", content, headers={"Content-Type": "application/json"})
        assert (reply.status, reply.document["error"]) == (400, "bad_request"), document


@pytest.mark.timeout(300)
def test_no_statement_stops_the_hub(hub: Daemon, tmp_path: Path) -> None:
    lines = [line for line in REFUSED.read_text().splitlines() if line and not line.startswith("#")]
    many = ", ".join(f"fleet_latest AS {letter}" for letter in "abcdefgh")
    heavy = [f"SELECT groupArray(concat(a.machine, b.view, g.reader)) FROM {many}", "SELECT '" + "é" * 4_000 + "'"]
    assert query(hub, "SELECT x").status == 400  # at its first error the engine loads all symbols permanently
    with under_attack(hub, growth_mib=1_300):  # a statement may take 1 GB
        for statement in (*lines, *heavy, "\ud800", "SELECT '\0'"):
            reply = query(hub, statement.replace("{out}", str(tmp_path / "out")))
            assert reply.status in (200, 400), (statement, reply)
            assert reply.status == 400 or statement in heavy, statement
    assert not (tmp_path / "out").exists()
    assert query(hub, "SELECT 1 AS one").document["rows"] == [[1]]
