"""The auditor: every acknowledged value is in the store exactly once, and every other one is accounted for. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.model.catalogue import CORE_METRICS
from gpufleet.model.reading import Sample

METRICS = tuple(sorted(metric.name for metric in CORE_METRICS))
IDENTITY = ("cluster", "machine", "view", "reader", "lane", "toUnixTimestamp64Nano(measured_at)")
ROWS = f"SELECT {', '.join(IDENTITY)}, {', '.join(METRICS)} FROM samples"
"""What the auditor asks of the store: physical rows, not collapsed."""

SHOWN = 5
"""Examples of each kind of problem."""

Key = tuple[str, str, str, str, str, int]
"""Cluster, machine name, view key, reader, lane, instant."""

Cells = tuple[int | float | str | None, ...]


class Ledger(msgspec.Struct, frozen=True):
    """What one sender knows.

    Attributes:
        name: of the sender.
        epoch: of the run of numbers.
        given: numbers that were given out.
        acknowledged: numbers that were answered 200.
        lost: the most numbers that may be missing at the hub: what was given up, or counted as dropped.
    """

    name: str
    epoch: str
    given: int
    acknowledged: frozenset[int]
    lost: int


class Verdict(msgspec.Struct):
    """What came out; `problems` is empty when all is well.

    Attributes:
        acknowledged: batches of light senders and agents.
        values: of acknowledged batches, each found once and unchanged unless a problem says otherwise.
        rows: in the store.
        lost: by sender, batches that never came to the hub, and those that the sender counts as lost: a few more,
            where an answer was lost with a connection.
    """

    acknowledged: int = 0
    values: int = 0
    rows: int = 0
    lost: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)


def rows_of(bodies: Iterable[bytes]) -> dict[Key, Cells]:
    """Return the rows that these bodies are to become."""
    rows: dict[Key, Cells] = {}
    for body in bodies:
        batch = to_rows(decode(body))
        for report in batch.reports:
            for sample in report.samples:
                view = sample.view.key if sample.view else ""
                key = (batch.cluster, report.machine.name, view, sample.reader, str(sample.lane), sample.measured_at)
                rows[key] = _cells(sample)
    return rows


def stored_rows(columns: Sequence[Sequence[Any]], names: Mapping[str, str]) -> list[tuple[Key, Cells]]:
    """Return the store's rows; `names` are machines' names by id."""
    rows = []
    for cluster, machine, view, reader, lane, at, *cells in zip(*columns, strict=True):
        key = (
            str(cluster),
            names.get(machine, f"unknown machine {machine}"),
            str(view),
            str(reader),
            str(lane),
            int(at),
        )
        rows.append((key, tuple(cells)))
    return rows


def audit_values(
    verdict: Verdict, acknowledged: Mapping[Key, Cells], attempted: Mapping[Key, Cells], stored: list[tuple[Key, Cells]]
) -> None:
    """Compare what was acknowledged, and what was posted at all, with what is stored."""
    counts = Counter(key for key, _ in stored)
    cells = dict(stored)
    verdict.rows = len(stored)
    verdict.values += sum(cell is not None for row in acknowledged.values() for cell in row)
    _say(verdict, "acknowledged and not stored", [key for key in acknowledged if key not in counts])
    _say(verdict, "stored more than once", [f"{count} x {key}" for key, count in counts.items() if count > 1])
    _say(
        verdict, "stored and never posted", [key for key in counts if key not in acknowledged and key not in attempted]
    )
    changed = [
        f"{key}: {METRICS[at]} is {cells[key][at]!r}, was {cell!r}"
        for posted in (attempted, acknowledged)
        for key, row in posted.items()
        if key in cells and cells[key] != row
        for at, cell in enumerate(row)
        if cells[key][at] != cell
    ]
    _say(verdict, "stored with another value", changed)


def audit_sequences(verdict: Verdict, ledgers: Iterable[Ledger], heard: Mapping[str, Any]) -> None:
    """Compare what senders know of their numbers with what the hub's `/v1/senders` says."""
    for ledger in ledgers:
        epochs = {epoch["epoch"]: epoch for epoch in heard.get(ledger.name, {}).get("epochs", ())}
        epoch = epochs.get(ledger.epoch, {"received": 0, "highest": 0, "missing": 0, "gaps": []})
        received, highest, missing = epoch["received"], epoch["highest"], epoch["missing"]
        verdict.acknowledged += len(ledger.acknowledged)
        never = ledger.given - received
        if never or ledger.lost:
            verdict.lost[ledger.name] = (never, ledger.lost)
        who = f"{ledger.name}, epoch {ledger.epoch[:8]}"
        gone = [seq for start, end in epoch["gaps"] for seq in range(start, end + 1) if seq in ledger.acknowledged]
        gone += [seq for seq in ledger.acknowledged if seq > highest]
        _say(verdict, f"{who}: acknowledged and missing at the hub", gone)
        if missing != highest - received:
            verdict.problems.append(f"{who}: {received} received of {highest}, and {missing} said to be missing")
        if never > ledger.lost:
            words = f"{never} of {ledger.given} never came, and {ledger.lost} are counted as lost"
            verdict.problems.append(f"{who}: {words}")


def audit_log(verdict: Verdict, name: str, text: str) -> None:
    """Find what no fault is an excuse for."""
    for word in ("Traceback", "Fatal Python error", "terminate called", "was never retrieved", "Exception ignored"):
        at = text.find(word)
        if at >= 0:
            verdict.problems.append(f"{name}: {word!r} in its log:\n{text[max(0, at - 300) : at + 1500]}")


def _cells(sample: Sample) -> Cells:
    values = (sample.values.get(name) for name in METRICS)
    return tuple(value if isinstance(value, int | float | str) else None for value in values)


def _say(verdict: Verdict, what: str, cases: Sequence[object]) -> None:
    if cases:
        verdict.problems.append(f"{len(cases)} {what}, such as " + "; ".join(map(str, cases[:SHOWN])))
