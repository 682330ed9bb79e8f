"""History of findings in the store: SQL views, and transitions that are written again."""

import datetime as dt

import pytest

from gpufleet.model.errors import StoreError
from gpufleet.model.finding import Finding, FindingState, Severity
from gpufleet.model.stored.findings import (
    HUB_SUBJECT,
    FindingTransition,
    NumberedTransition,
    TransitionKind,
    TransitionReason,
)
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse import ClickHouseStore

T0 = 1_700_000_000 * NANOS
START = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)


def transition(
    number: int,
    kind: TransitionKind,
    second: int,
    *,
    scope: str,
    finding: str = "f1",
    severity: Severity = Severity.WARNING,
) -> NumberedTransition:
    at, is_closed = T0 + second * NANOS, kind is TransitionKind.CLOSED
    return NumberedTransition(
        number,
        FindingTransition(
            kind=kind,
            at=at,
            reason=TransitionReason.HEALTHY if is_closed else TransitionReason.FIRING,
            finding=Finding(
                id=finding,
                rule="gpu.lost",
                scope=scope,
                severity=severity,
                state=FindingState.CLOSED if is_closed else FindingState.OPEN,
                evidence={"xid_codes": "79", "it's": "\0 ünicode"},
                first=T0 - NANOS,
                last=at,
                opened_at=T0,
                closed_at=at if is_closed else None,
                openings=2,
            ),
        ),
    )


def finding_rows(store: ClickHouseStore, cluster: str, columns: str, view: str = "fleet_findings") -> list[object]:
    statement = f"SELECT {columns} FROM {view} WHERE cluster = '{cluster}' ORDER BY id, last"
    return list(store.select(statement).rows)


def test_view_shows_each_finding_as_of_its_newest_transition(store: ClickHouseStore, cluster: str) -> None:
    scope = f"{cluster}/m-a/gpu/GPU-1"
    opened = transition(1, TransitionKind.OPENED, 0, scope=scope)
    escalated = transition(2, TransitionKind.ESCALATED, 60, scope=scope, severity=Severity.CRITICAL)
    closed = transition(4, TransitionKind.CLOSED, 90, scope=scope)
    other = transition(3, TransitionKind.OPENED, 0, scope=scope, finding="f2")
    columns = "id, rule, scope, severity, state, opened_at, closed_at, openings, evidence['it''s'] AS text"
    store.write_findings([opened, escalated])
    whole = ("f1", "gpu.lost", scope, "critical", "open", START, None, 2, "\0 ünicode")
    assert finding_rows(store, cluster, columns) == [whole]
    store.write_findings([other, closed])
    assert finding_rows(store, cluster, "id, state, closed_at") == [
        ("f1", "closed", START + dt.timedelta(seconds=90)),
        ("f2", "open", None),
    ]
    kinds = finding_rows(store, cluster, "id, kind, reason", "fleet_finding_transitions")
    assert kinds == [
        ("f1", "opened", "firing"),
        ("f1", "escalated", "firing"),
        ("f1", "closed", "healthy"),
        ("f2", "opened", "firing"),
    ]


def test_transition_written_again_changes_nothing(store: ClickHouseStore, cluster: str) -> None:
    some = [transition(n, TransitionKind.OPENED, 0, scope=cluster, finding=f"f{n}") for n in (1, 2)]
    store.write_findings(some)
    store.write_findings(some)
    store.write_findings(some[1:])
    for view in ("fleet_findings", "fleet_finding_transitions"):
        assert finding_rows(store, cluster, "id", view) == [("f1",), ("f2",)]


def test_restored_registry_overwrites_no_older_transition(store: ClickHouseStore, cluster: str) -> None:
    """It gives the numbers of lost transitions again, and closes a finding a second time."""
    opened = transition(1, TransitionKind.OPENED, 0, scope=cluster)
    lost = [transition(2, TransitionKind.CLOSED, 60, scope=cluster), *_opened(cluster, 3, "f2")]
    store.write_findings([opened, *lost])
    store.write_findings([*_opened(cluster, 2, "f3"), transition(3, TransitionKind.CLOSED, 90, scope=cluster)])
    shown = finding_rows(store, cluster, "id, kind, last", "fleet_finding_transitions")
    assert [row[:2] for row in shown] == [  # type: ignore[index]
        ("f1", "opened"),
        ("f1", "closed"),
        ("f1", "closed"),
        ("f2", "opened"),
        ("f3", "opened"),
    ]
    newest = finding_rows(store, cluster, "id, closed_at")
    assert newest == [("f1", START + dt.timedelta(seconds=90)), ("f2", None), ("f3", None)]


def _opened(cluster: str, number: int, finding: str) -> list[NumberedTransition]:
    return [transition(number, TransitionKind.OPENED, 0, scope=cluster, finding=finding)]


def test_finding_of_the_hub_has_no_cluster(embedded: ClickHouseStore) -> None:
    one = transition(1, TransitionKind.OPENED, 0, scope=HUB_SUBJECT, finding="of-the-hub")
    embedded.write_findings([one])
    found = embedded.select("SELECT cluster, scope FROM fleet_findings WHERE id = 'of-the-hub'").rows
    assert found == [("", "")]


def test_no_transitions_are_no_write(embedded: ClickHouseStore) -> None:
    before = embedded.stats()
    embedded.write_findings([])
    assert embedded.stats() == before


def test_transition_that_does_not_fit_is_a_store_error(embedded: ClickHouseStore) -> None:
    with pytest.raises(StoreError, match="number"):
        embedded.write_findings([transition(2**64, TransitionKind.OPENED, 0, scope="c")])
