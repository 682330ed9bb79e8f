"""Audit: every acknowledged value is in the store exactly once, and all others are accounted for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.model.catalogue import CORE_METRICS
from gpufleet.model.reading import Sample
from tests.support.subjects import named

METRICS = tuple(sorted(metric.name for metric in CORE_METRICS))
IDENTITY = ("cluster", "machine", "view", "reader", "lane", "toUnixTimestamp64Nano(measured_at)")
ROWS = f"SELECT {', '.join(IDENTITY)}, {', '.join(METRICS)} FROM {named('samples')}"
"""Query of the auditor: physical rows, not collapsed."""

SHOWN = 5
"""Examples shown of each kind of problem."""

Key = tuple[str, str, str, str, str, int]
"""Cluster, machine name, view key, reader, lane, instant."""

Cells = tuple[int | float | str | None, ...]


class Ledger(msgspec.Struct, frozen=True):
    """Sequence numbers of one sender, by its own records.

    Attributes:
        name: name of the sender.
        epoch: epoch of the numbers.
        assigned: count of assigned numbers.
        acknowledged: numbers of batches answered with 200.
        lost: maximum of numbers missing at the hub: batches given up or counted as dropped.
    """

    name: str
    epoch: str
    assigned: int
    acknowledged: frozenset[int]
    lost: int


class Verdict(msgspec.Struct):
    """Result of the audit. `problems` is empty if it passed.

    Attributes:
        acknowledged: acknowledged batches of light senders and agents.
        values: checked values of acknowledged batches.
        rows: rows in the store.
        lost: by sender, batches that never arrived at the hub, and batches that the sender counts as lost. The
            second number can be greater, as responses get lost too.
    """

    acknowledged: int = 0
    values: int = 0
    rows: int = 0
    lost: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)


def rows_of(bodies: Iterable[bytes]) -> dict[Key, Cells]:
    """Return the rows expected from these bodies."""
    return {key: _cells(sample) for _, key, sample in _samples_of(bodies)}


def count_batches(bodies: Iterable[bytes]) -> Counter[Key]:
    """Return the number of different batches with each row: an agent repeats the sample of its probe."""
    return Counter(key for _, key in {(batch, key) for batch, key, _ in _samples_of(bodies)})


def _samples_of(bodies: Iterable[bytes]) -> Iterator[tuple[tuple[str, str, int], Key, Sample]]:
    """Yield sender, epoch and number of the batch, key and sample of each row."""
    for body in bodies:
        batch = to_rows(decode(body))
        for report in batch.reports:
            for sample in report.samples:
                view = sample.view.key if sample.view else ""
                key = (batch.cluster, report.machine.name, view, sample.reader, str(sample.lane), sample.measured_at)
                yield (batch.sender, batch.epoch, batch.seq), key, sample


def stored_rows(columns: Sequence[Sequence[Any]], names: Mapping[str, str]) -> list[tuple[Key, Cells]]:
    """Return the store's rows. `names` are machine names by id."""
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
    verdict: Verdict,
    acknowledged: Mapping[Key, Cells],
    attempted: Mapping[Key, Cells],
    stored: list[tuple[Key, Cells]],
    batches: Mapping[Key, int],
) -> None:
    """Compare acknowledged and attempted rows with the stored rows.

    `batches` is the number of batches with each row. A row is stored once for each of them at most.
    """
    counts = Counter(key for key, _ in stored)
    cells = dict(stored)
    verdict.rows = len(stored)
    verdict.values += sum(cell is not None for row in acknowledged.values() for cell in row)
    _add_problem(verdict, "acknowledged and not stored", [key for key in acknowledged if key not in counts])
    doubled = [f"{count} x {key}" for key, count in counts.items() if count > batches.get(key, 1)]
    _add_problem(verdict, "stored more than once", doubled)
    _add_problem(
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
    _add_problem(verdict, "stored with another value", changed)


def audit_sequences(verdict: Verdict, ledgers: Iterable[Ledger], senders: Mapping[str, Any]) -> None:
    """Compare the senders' numbers with the hub's `/v1/senders`."""
    for ledger in ledgers:
        epochs = {epoch["epoch"]: epoch for epoch in senders.get(ledger.name, {}).get("epochs", ())}
        epoch = epochs.get(ledger.epoch, {"received": 0, "highest": 0, "missing": 0, "gaps": []})
        received, highest, missing = epoch["received"], epoch["highest"], epoch["missing"]
        verdict.acknowledged += len(ledger.acknowledged)
        never = ledger.assigned - received
        if never or ledger.lost:
            verdict.lost[ledger.name] = (never, ledger.lost)
        source = f"{ledger.name}, epoch {ledger.epoch[:8]}"
        gone = [seq for start, end in epoch["gaps"] for seq in range(start, end + 1) if seq in ledger.acknowledged]
        gone += [seq for seq in ledger.acknowledged if seq > highest]
        _add_problem(verdict, f"{source}: acknowledged and missing at the hub", gone)
        if missing != highest - received:
            verdict.problems.append(f"{source}: {received} received of {highest}, and {missing} reported as missing")
        if never > ledger.lost:
            detail = f"{never} of {ledger.assigned} never arrived, and {ledger.lost} are counted as lost"
            verdict.problems.append(f"{source}: {detail}")


def audit_log(verdict: Verdict, name: str, text: str) -> None:
    """Report log texts that no fault excuses."""
    for phrase in ("Traceback", "Fatal Python error", "terminate called", "was never retrieved", "Exception ignored"):
        at = text.find(phrase)
        if at >= 0:
            verdict.problems.append(f"{name}: {phrase!r} in its log:\n{text[max(0, at - 300) : at + 1500]}")


def _cells(sample: Sample) -> Cells:
    values = (sample.values.get(name) for name in METRICS)
    return tuple(value if isinstance(value, int | float | str) else None for value in values)


def _add_problem(verdict: Verdict, what: str, cases: Sequence[object]) -> None:
    if cases:
        verdict.problems.append(f"{len(cases)} {what}, such as " + "; ".join(map(str, cases[:SHOWN])))
