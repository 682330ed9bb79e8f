"""Auditor: missing, duplicate and changed rows, gaps in sequences, and tracebacks."""

from typing import Any

import pytest

from tests.crash.audit import METRICS, Ledger, Verdict, audit_log, audit_sequences, audit_values, count_batches, rows_of
from tests.fakes.batches import EPOCH, body

BASE = 1_767_225_600_000_000_000
BODIES = [body(seq, BASE + seq * 10**9) for seq in range(1, 5)]
ROWS = rows_of(BODIES)
STORED = list(ROWS.items())
BATCHES = count_batches(BODIES)


def problems_of(stored: list[Any], *, acknowledged: Any = None, attempted: Any = None) -> list[str]:
    verdict = Verdict()
    audit_values(verdict, ROWS if acknowledged is None else acknowledged, attempted or {}, stored, BATCHES)
    return verdict.problems


def test_rows_stored_once_and_unchanged_pass() -> None:
    verdict = Verdict()
    audit_values(verdict, ROWS, {}, STORED, BATCHES)
    assert (verdict.problems, verdict.rows) == ([], 12)
    # A machine's load and memory and two GPUs' power; the temperature is absent.
    assert verdict.values == 4 * 4


def test_missing_row_is_reported() -> None:
    (problem,) = problems_of(STORED[1:])
    assert problem.startswith("1 acknowledged and not stored, such as ('local', 'node-a', ''")


def test_duplicate_row_is_reported() -> None:
    (problem,) = problems_of([*STORED, STORED[3]])
    assert problem.startswith("1 stored more than once, such as 2 x ('local', 'node-a'")


def test_row_is_stored_once_for_each_batch_that_repeats_it() -> None:
    repeated = body(5, BASE + 4 * 10**9)
    verdict, again = Verdict(), [one for one in STORED if one[0] in rows_of([repeated])]
    batches = count_batches([*BODIES, repeated, repeated])
    audit_values(verdict, ROWS, {}, [*STORED, *again], batches)
    assert (len(again), verdict.problems) == (3, [])
    audit_values(verdict, ROWS, {}, [*STORED, *again, again[0]], batches)
    assert [problem[:23] for problem in verdict.problems] == ["1 stored more than once"]


@pytest.mark.parametrize("value", [0.0, None, 99.5])
def test_changed_value_is_reported(value: float | None) -> None:
    (key, cells), *others = STORED
    place = METRICS.index("host_load_1m")
    assert cells[place] == 0.5
    (problem,) = problems_of([(key, (*cells[:place], value, *cells[place + 1 :])), *others])
    assert f"host_load_1m is {value!r}, was 0.5" in problem


def test_row_of_an_unanswered_batch_is_optional() -> None:
    acknowledged, attempted = rows_of(BODIES[:3]), rows_of(BODIES[3:])
    assert problems_of(STORED, acknowledged=acknowledged, attempted=attempted) == []
    assert problems_of(STORED[:9], acknowledged=acknowledged, attempted=attempted) == []
    (problem,) = problems_of(STORED, acknowledged=acknowledged)
    assert problem.startswith("3 stored and never posted")


def hub_view(received: int, highest: int, missing: int, gaps: list[list[int]]) -> dict[str, Any]:
    epoch = {"epoch": EPOCH, "received": received, "highest": highest, "missing": missing, "gaps": gaps}
    return {"node-a": {"epochs": [epoch]}}


def sequence_problems(ledger: Ledger, senders: dict[str, Any]) -> list[str]:
    verdict = Verdict()
    audit_sequences(verdict, [ledger], senders)
    return verdict.problems


def test_only_gaps_counted_by_the_sender_pass() -> None:
    counted = Ledger("node-a", EPOCH, 10, frozenset({1, 2, 3, 5, 6, 7, 8, 9, 10}), lost=1)
    assert sequence_problems(counted, hub_view(9, 10, 1, [[4, 4]])) == []
    verdict = Verdict()
    audit_sequences(verdict, [counted], hub_view(9, 10, 1, [[4, 4]]))
    assert verdict.lost == {"node-a": (1, 1)}
    (problem,) = sequence_problems(counted, hub_view(8, 10, 2, [[4, 4], [7, 7]]))[1:]
    assert problem.endswith("2 of 10 never arrived, and 1 are counted as lost")
    assert (
        "acknowledged and missing at the hub, such as 7"
        in sequence_problems(counted, hub_view(8, 10, 2, [[4, 4], [7, 7]]))[0]
    )


def test_missing_newest_batches_are_reported() -> None:
    ledger = Ledger("node-a", EPOCH, 10, frozenset(range(1, 9)), lost=0)
    (problem,) = sequence_problems(ledger, hub_view(8, 8, 0, []))
    assert problem.endswith("2 of 10 never arrived, and 0 are counted as lost")


def test_wrong_missing_count_of_the_hub_is_reported() -> None:
    ledger = Ledger("node-a", EPOCH, 10, frozenset(range(1, 10)), lost=1)
    (problem,) = sequence_problems(ledger, hub_view(9, 10, 0, []))
    assert problem.endswith("9 received of 10, and 0 reported as missing")


def test_traceback_in_a_log_is_reported() -> None:
    verdict = Verdict()
    audit_log(verdict, "hub", '{"level": "warning", "message": "flush failed"}\n')
    assert verdict.problems == []
    audit_log(verdict, "hub", "Traceback (most recent call last):\n  ...\nKeyError: 7\n")
    assert "KeyError: 7" in verdict.problems[0]
