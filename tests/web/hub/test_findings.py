"""Routes of findings and silences on a running hub: parameters, formats, bounds, counts."""

import csv
import datetime as dt
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gpufleet.config.hub import FindingsConfig
from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.hub.findings.late import LateReports
from gpufleet.hub.liveness.senders import Senders
from gpufleet.hub.query.finding_records import DISABLED
from gpufleet.model.api.findings import MAX_NOTE_BYTES, FindingDetail, FindingPage, SilenceRecord
from gpufleet.model.finding import Finding, Severity
from gpufleet.model.stored.findings import FindingsState
from gpufleet.model.time import to_datetime
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SqlFindings
from gpufleet.wiring.findings import RuleParts
from tests.fakes.batches import body
from tests.support.findings import make_finding, transitions_of
from tests.web.hub.site import Site, now, running_site

SECOND = 10**9
AT = (now() // SECOND - 3600) * SECOND
"""An hour ago: a running hub removes findings that closed long ago."""
LOST = make_finding("gpu.lost", "local/m-1/gpu/GPU-0", AT, severity=Severity.CRITICAL, evidence={"xid_codes": "=79"})
CLOSED = make_finding("node.missing", "local/m-1", AT + 1, closed_at=AT + 61 * SECOND)
HUB = make_finding("hub.network", "", AT + 2)
DISABLED_EVALUATION = FindingsConfig(enabled=False)
"""Configuration of hubs with stored findings: an evaluation closes open findings that it does not track."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path, findings=DISABLED_EVALUATION) as site:
        save(tmp_path, LOST, CLOSED, HUB)
        yield site


def save(folder: Path, *found: Finding) -> None:
    """Store findings in the registry of a running hub."""
    database = Database.open(f"sqlite:///{folder}/hub/registry.sqlite")
    try:
        for one in found:
            SqlFindings(database).save_findings(FindingsState(), transitions_of(one))
    finally:
        database.close()


async def listed(site: Site, query: str = "") -> list[str]:
    status, document = await site.request(f"/v1/findings?{query}")
    assert status == 200, document
    return [one.id for one in msgspec.convert(document, FindingPage).items]


def text_of(at: int) -> str:
    """Return a time as a parameter."""
    return f"{to_datetime(at):%Y-%m-%dT%H:%M:%SZ}"


async def test_list_is_filtered_by_each_parameter(site: Site) -> None:
    for query, expected in {
        "": [HUB, CLOSED, LOST],
        "cluster=local": [CLOSED, LOST],
        "rule=gpu.lost&rule=hub.network": [HUB, LOST],
        "severity=critical": [LOST],
        "severity=critical&severity=warning": [HUB, CLOSED, LOST],
        "state=closed": [CLOSED],
        "state=open&state=unknown": [HUB, LOST],
        "scope=device": [LOST],
        "scope=device&scope=machine&subject=local/m-1": [CLOSED, LOST],
        "scope=sender&subject=local/m-1": [],
        "subject=local/m-1": [CLOSED, LOST],
        f"since={text_of(AT + 60 * SECOND)}": [HUB, CLOSED, LOST],
        f"since={text_of(AT + 61 * SECOND)}": [HUB, LOST],
        f"until={text_of(AT)}": [],
        f"until={text_of(AT + SECOND)}": [HUB, CLOSED, LOST],
        "limit=1": [HUB],
    }.items():
        assert await listed(site, query) == [one.id for one in expected], query


async def test_wrong_parameters_are_rejected_by_name(site: Site) -> None:
    for query, field in {
        "rule=gpu.lots": "rule",
        "severity=fatal": "severity",
        "state=opened": "state",
        "scope=gpu": "scope",
        "subject=local/": "subject",
        "subject=/m-1": "subject",
        "subject=local//m-1": "subject",
        "subject=local/m-1/": "subject",
        "since=yesterday": "since",
        "since=2024-01-02T00:00:00Z&until=2024-01-01T00:00:00Z": "until",
        "limit=0": "limit",
        "cursor=x": "cursor",
        "node=x": "node",
    }.items():
        status, document = await site.request(f"/v1/findings?{query}")
        assert (status, document["error"], document["field"]) == (400, "bad_request", field), query


async def test_pages_of_findings_follow_cursors(site: Site) -> None:
    path, found = "/v1/findings?limit=1", []
    cursor = ""
    while True:
        document = (await site.request(path + cursor))[1]
        found += [one["id"] for one in document["items"]]
        if document["next"] is None:
            break
        cursor = f"&cursor={document['next']}"
    assert found == [HUB.id, CLOSED.id, LOST.id]


async def test_list_is_csv_on_request(site: Site) -> None:
    text = await site.text("/v1/findings?format=csv&rule=gpu.lost")
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["id"], row["severity"], row["closed_at"], row["device"]) == (LOST.id, "critical", "", LOST.scope)
    assert (row["acknowledgement.by"], row["evidence"]) == ("", '{"xid_codes":"=79"}')


async def test_finding_has_texts_of_its_rule_and_a_timeline(site: Site, tmp_path: Path) -> None:
    await site.post(body(1, now()))
    (machine,) = (await site.request("/v1/machines"))[1]["items"]
    mine = make_finding("node.missing", f"local/{machine['id']}", AT + 3, closed_at=AT + SECOND)
    save(tmp_path, mine)
    status, document = await site.request(f"/v1/findings/{mine.id}")
    found = msgspec.convert(document, FindingDetail)
    assert (status, found.node, found.machine) == (200, "node-a", machine["id"])
    rule = RULES_BY_ID["node.missing"]
    assert (found.family, found.explanation, found.action) == (rule.family, rule.explanation, rule.action)
    assert [(one.kind, one.reason) for one in found.timeline] == [("opened", "firing"), ("closed", "healthy")]


async def test_acknowledgement_is_stored_and_withdrawn(site: Site) -> None:
    path = f"/v1/findings/{LOST.id}/acknowledgement"
    status, document = await site.request(path, "PUT", {"duration": "4h", "note": "in repair"})
    assert (status, document["acknowledged"], document["acknowledgement"]["by"]) == (200, True, "local")
    assert await listed(site, "state=acknowledged") == [LOST.id]
    status, document = await site.request(path, "DELETE")
    assert (status, document["acknowledged"]) == (200, False)
    assert (await site.request(f"/v1/findings/{CLOSED.id}/acknowledgement", "PUT", {"duration": "4h"}))[0] == 409
    for method in ("PUT", "DELETE"):
        status, _ = await site.request(f"/v1/findings/{'0' * 24}/acknowledgement", method, {"duration": "1h"})
        assert status == 404


def after(**span: float) -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(**span)).isoformat()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "until"),
        ({"duration": "1h", "until": after(hours=1)}, "until"),
        ({"until": after(hours=-1)}, "until"),
        ({"until": after(days=91)}, "until"),
        ({"until": "2099-01-01T00:00:00"}, "until"),
        ({"until": "tomorrow"}, "until"),
        ({"duration": "91d"}, "duration"),
        ({"duration": "0"}, "duration"),
        ({"duration": "-1h"}, "duration"),
        ({"duration": 3600}, "duration"),
        ({"duration": "1h", "note": "x" * (MAX_NOTE_BYTES + 1)}, "note"),
        ({"duration": "1h", "note": "é" * (MAX_NOTE_BYTES // 2 + 1)}, "note"),
        ({"duration": "1h", "actor": "root"}, ""),
    ],
)
async def test_bounds_of_acknowledgements_and_silences(site: Site, given: dict[str, Any], field: str) -> None:
    for path, method, more in (
        (f"/v1/findings/{LOST.id}/acknowledgement", "PUT", {}),
        ("/v1/silences", "POST", {"rule": "gpu.lost"}),
    ):
        status, document = await site.request(path, method, {**given, **more})
        assert (status, document.get("field", "")) == (400, field), (path, document)


async def test_longest_note_and_time_are_accepted(site: Site) -> None:
    given = {"duration": "90d", "note": "é" * (MAX_NOTE_BYTES // 2)}
    status, document = await site.request(f"/v1/findings/{LOST.id}/acknowledgement", "PUT", given)
    assert (status, document["acknowledgement"]["note"]) == (200, given["note"])


async def test_silence_is_listed_until_it_is_ended(site: Site) -> None:
    given = {"subject": "local/m-1", "scopes": ["machine", "device"], "until": after(hours=2)}
    status, document = await site.request("/v1/silences", "POST", given)
    made = msgspec.convert(document, SilenceRecord)
    assert (status, made.rule, made.subject, made.by) == (201, None, "local/m-1", "local")
    assert made.scopes == ("machine", "device")
    assert [one["id"] for one in (await site.request("/v1/silences"))[1]] == [made.id]
    detail = msgspec.convert((await site.request(f"/v1/findings/{LOST.id}"))[1], FindingDetail)
    assert detail.silenced_until == made.until
    assert (await site.request(f"/v1/silences/{made.id}", "DELETE"))[0] == 200
    assert (await site.request("/v1/silences"))[1] == []
    assert (await site.request("/v1/silences/x", "DELETE"))[0] == 404


async def test_rule_or_cluster_is_silenced_without_scopes(site: Site) -> None:
    for given, scopes in (
        ({"rule": "gpu.lost"}, ()),
        ({"subject": "local"}, ()),
        ({"rule": "gpu.lost", "subject": "local/m-1"}, ()),
        (
            {"rule": "gpu.lost", "subject": "local/m-1", "scopes": ["device", "machine", "device"]},
            ("device", "machine"),
        ),
    ):
        status, document = await site.request("/v1/silences", "POST", {**given, "duration": "1h"})
        assert (status, msgspec.convert(document, SilenceRecord).scopes) == (201, scopes), document
    rows = list(csv.DictReader(io.StringIO(await site.text("/v1/silences?format=csv"), newline="")))
    assert sorted(one["scopes"] for one in rows) == ['["device","machine"]', "[]", "[]", "[]"]


async def test_answers_state_that_the_rules_are_not_evaluated(tmp_path: Path) -> None:
    async with running_site(tmp_path, findings=DISABLED_EVALUATION) as site:
        save(tmp_path, LOST)
        for path in ("/v1/findings", f"/v1/findings/{LOST.id}", "/v1/fleet"):
            evaluation = (await site.request(path))[1]["evaluation"]
            assert (evaluation["evaluated_at"], evaluation["is_current"]) == (None, False), path
            assert evaluation["failure"] == DISABLED, path


def test_answers_use_the_configured_interval() -> None:
    parts = RuleParts.of(cast("Senders", None), cast("LateReports", None), (), 30)
    assert parts.live(FindingsConfig()).evaluation().interval_seconds == 30


async def test_silence_needs_a_known_rule_or_a_subject(site: Site) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "rule"),
        ({"scopes": ["machine"]}, "rule"),
        ({"rule": "gpu.lots"}, "rule"),
        *(({"subject": one}, "subject") for one in ("", "/", "local/", "/m-1", "local//m-1")),
        ({"rule": "gpu.lost", "scopes": ["gpu"]}, "scopes"),
        ({"rule": "gpu.lost", "scopes": ["machine"]}, "scopes"),
        ({"subject": "local", "scopes": ["machine"] * 7}, "scopes"),
        ({"subject": "local/m-1"}, "scopes"),
        ({"subject": "local/" + "m" * 1024}, "subject"),
    ]
    for given, field in wrong:
        status, document = await site.request("/v1/silences", "POST", {**given, "duration": "1h"})
        assert (status, document["field"]) == (400, field), document
