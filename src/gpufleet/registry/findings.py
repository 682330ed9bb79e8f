"""Findings over time: state of the rules, numbered transitions, acknowledgements, silences and receivers."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gpufleet.codecs.batch.compression import compress, decompress
from gpufleet.model.errors import ConflictError, NotFoundError, RegistryError, WireError
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import (
    FindingAcknowledgement,
    FindingQuery,
    FindingsState,
    FindingTransition,
    LateStart,
    NumberedTransition,
    Silence,
    cluster_of,
)
from gpufleet.model.time import to_datetime
from gpufleet.registry.database import Database, Row, execute_rows, storable_text, upsert
from gpufleet.registry.tables import (
    CONTRACT_STATE,
    FINDING_ACKNOWLEDGEMENTS,
    FINDING_RECEIVERS,
    FINDING_TRANSITIONS,
    FINDINGS,
    FINDINGS_STATE,
    LATE_INTERVALS,
    SILENCES,
)

SLICE = 10_000
"""Maximum number of parameters of a list in a statement. SQLite allows 32,766 in a statement, PostgreSQL 65,535."""

_MAX_STATE_BYTES = 2**32 - 1  # only bounds the memory that a damaged state takes
_AFTER_SLASH = chr(ord("/") + 1)
_FINDING_COLUMNS = ("id", "rule", "scope", "cluster", "severity", "opened_at", "closed_at", "finding")
_TRANSITION_COLUMNS = ("finding", "kind", "at", "transition")
_ENCODER = msgspec.msgpack.Encoder()
_STATES = msgspec.msgpack.Decoder(FindingsState)
_FINDINGS = msgspec.msgpack.Decoder(Finding)
_TRANSITIONS = msgspec.msgpack.Decoder(FindingTransition)
_SILENCES = msgspec.msgpack.Decoder(Silence)


class SqlFindings:
    """A `ports.FindingRegistry` in the registry's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def findings_state(self) -> FindingsState:
        """Return the state that was saved last; an empty one at first."""
        with self._database.reading() as connection:
            packed = connection.scalar(sa.select(FINDINGS_STATE.c.state))
        if packed is None:
            return FindingsState()
        try:
            return _STATES.decode(decompress(packed, _MAX_STATE_BYTES))
        except (WireError, msgspec.MsgspecError) as error:
            raise RegistryError(
                f"the state of findings in the registry is damaged ({error}): restore the registry from a backup "
                "(docs/operations/backup.md)"
            ) from error

    def save_findings(self, state: FindingsState, transitions: Sequence[FindingTransition]) -> None:
        """Store the state, the findings of the transitions and the numbered transitions, in one transaction.

        A transition that is stored already, with the same finding, kind and time, changes nothing.
        """
        packed = compress(_ENCODER.encode(state))
        with self._database.writing() as connection:
            # First: this locks the row until the commit, so that PostgreSQL, too, numbers in the order of commits.
            connection.execute(FINDINGS_STATE.update().values(state=packed))
            new = _without_stored(connection, transitions)
            newest = {one.finding.id: one.finding for one in new}
            in_order = [_finding_row(one) for _, one in sorted(newest.items())]  # 40 % less time for 100,000 openings
            upsert(connection, FINDINGS, _FINDING_COLUMNS, in_order)
            rows = [(*_transition_key(one), _ENCODER.encode(one)) for one in new]
            execute_rows(connection, FINDING_TRANSITIONS.insert().inline(), _TRANSITION_COLUMNS, rows)

    def late_starts(self) -> tuple[LateStart, ...]:
        """Return the senders with late batches that are not judged yet."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(LATE_INTERVALS).order_by("cluster", "sender"))
            return tuple(LateStart(cluster=row.cluster, sender=row.sender, start=row.start) for row in rows)

    def save_late_starts(self, starts: Sequence[LateStart], judged: Collection[tuple[str, str]] = ()) -> None:
        """Store the start of senders, and delete that of others, in one transaction."""
        key = (LATE_INTERVALS.c.cluster == sa.bindparam("of_cluster"), LATE_INTERVALS.c.sender == sa.bindparam("who"))
        with self._database.writing() as connection:
            rows = [(one.cluster, one.sender, one.start) for one in starts]
            upsert(connection, LATE_INTERVALS, ("cluster", "sender", "start"), rows)
            execute_rows(connection, LATE_INTERVALS.delete().where(*key), ("of_cluster", "who"), sorted(judged))

    def contract_state(self) -> bytes | None:
        """Return the history of the adoption contract that was saved last; None at first."""
        with self._database.reading() as connection:
            packed = connection.scalar(sa.select(CONTRACT_STATE.c.state))
        try:
            return None if packed is None else decompress(packed, _MAX_STATE_BYTES)
        except WireError as error:
            raise RegistryError(
                f"the history of the adoption contract in the registry is damaged ({error}): restore the registry from "
                "a backup (docs/operations/backup.md)"
            ) from error

    def save_contract_state(self, state: bytes) -> None:
        """Store the history of the adoption contract."""
        with self._database.writing() as connection:
            connection.execute(CONTRACT_STATE.update().values(state=compress(state)))

    def findings(self, query: FindingQuery) -> tuple[Finding, ...]:
        """Return matching findings as of their newest transition, with acknowledgements."""
        subjects: Iterable[Sequence[str] | None]
        subjects = (None,) if query.subjects is None else _slices(_storable(query.subjects))
        with self._database.reading() as connection:
            rows = [row for part in subjects for row in connection.execute(_matching(query, part))]
        rows.sort(key=lambda row: (-row.opened_at, row.id))
        return tuple(_read(row) for row in rows[: query.limit])

    def finding(self, id: str) -> Finding:  # noqa: A002
        """Return a finding as of its newest transition. Raises NotFoundError."""
        with self._database.reading() as connection:
            return _get(connection, id)

    def finding_timeline(self, id: str) -> tuple[FindingTransition, ...]:  # noqa: A002
        """Return the transitions of a finding, oldest first; none of an unknown one."""
        table = FINDING_TRANSITIONS
        query = sa.select(table.c.transition).where(table.c.finding == storable_text(id)).order_by(table.c.number)
        with self._database.reading() as connection:
            return tuple(map(_TRANSITIONS.decode, connection.scalars(query)))

    def finding_transitions(self, after: int, limit: int) -> tuple[NumberedTransition, ...]:
        """Return transitions with numbers above `after`, in order."""
        table = FINDING_TRANSITIONS
        query = (
            sa.select(table.c.number, table.c.transition)
            .where(table.c.number > after)
            .order_by(table.c.number)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return tuple(
                NumberedTransition(number, _TRANSITIONS.decode(transition))
                for number, transition in connection.execute(query)
            )

    def newest_transition(self) -> int:
        """Return the number of the newest transition; 0 if there is none."""
        with self._database.reading() as connection:
            return connection.scalar(sa.select(sa.func.max(FINDING_TRANSITIONS.c.number))) or 0

    def acknowledge_finding(self, acknowledgement: FindingAcknowledgement) -> Finding:
        """Store an acknowledgement in place of an earlier one, and return the finding with it.

        Raises:
            NotFoundError: if there is no such finding.
            ConflictError: if it is closed.
        """
        given = acknowledgement
        with self._database.writing() as connection:
            finding = _get(connection, given.finding, lock=True)
            if finding.closed_at is not None:
                closed_at = to_datetime(finding.closed_at).isoformat()
                raise ConflictError(f"finding {given.finding!r} was closed at {closed_at}: acknowledge open ones")
            note, actor = storable_text(given.note), storable_text(given.actor)
            upsert(
                connection,
                FINDING_ACKNOWLEDGEMENTS,
                ("finding", "at", "until", "actor", "note"),
                [(storable_text(given.finding), given.at, given.until, actor, note)],
            )
        return msgspec.structs.replace(finding, acknowledged_until=given.until)

    def finding_acknowledgements(self, ids: Sequence[str]) -> dict[str, FindingAcknowledgement]:
        """Return the acknowledgements of findings by id, ended ones included; a finding without one is missing."""
        columns = FINDING_ACKNOWLEDGEMENTS.c
        query = sa.select(columns.finding, columns.at, columns.until, columns.actor, columns.note)
        with self._database.reading() as connection:
            return {
                finding: FindingAcknowledgement(finding=finding, at=at, until=until, actor=actor, note=note)
                for part in _slices(_storable(ids))
                for finding, at, until, actor, note in connection.execute(query.where(columns.finding.in_(part)))
            }

    def add_silence(self, silence: Silence) -> None:
        """Store a silence."""
        values = {"id": silence.id, "at": silence.at, "until": silence.until, "silence": _ENCODER.encode(silence)}
        with self._database.writing() as connection:
            connection.execute(SILENCES.insert().values(**values))

    def end_silence(self, id: str, at: int) -> Silence:  # noqa: A002
        """End a silence; an ended one is unchanged. Raises NotFoundError."""
        own = SILENCES.c.id == storable_text(id)
        with self._database.writing() as connection:
            found = connection.scalar(sa.select(SILENCES.c.silence).where(own).with_for_update())
            if found is None:
                raise NotFoundError(f"there is no silence {id!r}")
            silence = _SILENCES.decode(found)
            if silence.until > at:
                silence = msgspec.structs.replace(silence, until=at)
                values = {"until": at, "silence": _ENCODER.encode(silence)}
                connection.execute(SILENCES.update().where(own).values(**values))
        return silence

    def silences(self, since: int) -> tuple[Silence, ...]:
        """Return the silences that end after `since`, oldest first."""
        table = SILENCES
        query = sa.select(table.c.silence).where(table.c.until > since).order_by(table.c.at, table.c.id)
        with self._database.reading() as connection:
            return tuple(map(_SILENCES.decode, connection.scalars(query)))

    def remove_silences(self, ended_before: int, limit: int) -> int:
        """Remove up to `limit` silences that ended before then, oldest end first; return their number."""
        column = SILENCES.c
        query = sa.select(column.id).where(column.until < ended_before).order_by(column.until).limit(limit)
        with self._database.writing() as connection:
            ids = connection.scalars(query).all()
            for part in _slices(ids):
                connection.execute(sa.delete(SILENCES).where(column.id.in_(part)))
        return len(ids)

    def notified(self, receiver: str) -> int | None:
        """Return the number of the newest transition that a receiver has; None for a new receiver."""
        table = FINDING_RECEIVERS
        query = sa.select(table.c.number).where(table.c.receiver == storable_text(receiver))
        with self._database.reading() as connection:
            return connection.scalar(query)

    def set_notified(self, receiver: str, number: int) -> None:
        """Store that number."""
        with self._database.writing() as connection:
            upsert(connection, FINDING_RECEIVERS, ("receiver", "number"), [(storable_text(receiver), number)])

    def keep_receivers(self, receivers: Collection[str]) -> int:
        """Remove the numbers of all other receivers; return how many there were."""
        others = FINDING_RECEIVERS.c.receiver.not_in(_storable(receivers))
        with self._database.writing() as connection:
            return connection.execute(sa.delete(FINDING_RECEIVERS).where(others)).rowcount

    def remove_findings(self, closed_before: int, limit: int, undelivered_before: int = 0) -> int:
        """Remove up to `limit` findings closed before then, with their transitions; return their number.

        A finding with a transition that a receiver does not have yet is kept, with all its transitions, unless it was
        closed before `undelivered_before`.
        """
        findings, transitions = FINDINGS.c, FINDING_TRANSITIONS.c
        with self._database.writing() as connection:
            query = sa.select(findings.id).where(findings.closed_at < closed_before)
            lowest = connection.scalar(sa.select(sa.func.min(FINDING_RECEIVERS.c.number)))
            if lowest is not None:
                is_missing = sa.exists().where((transitions.finding == findings.id) & (transitions.number > lowest))
                query = query.where(~is_missing | (findings.closed_at < undelivered_before))
            ids = connection.scalars(query.order_by(findings.closed_at).limit(limit)).all()
            for part in _slices(ids):
                for column in (FINDING_ACKNOWLEDGEMENTS.c.finding, transitions.finding, findings.id):
                    connection.execute(sa.delete(column.table).where(column.in_(part)))
        return len(ids)


def _without_stored(connection: sa.Connection, transitions: Iterable[FindingTransition]) -> list[FindingTransition]:
    """Return the transitions that are not stored yet, in the given order."""
    new: dict[tuple[str, str, int], FindingTransition] = {}
    for one in transitions:
        new.setdefault(_transition_key(one), one)
    table = FINDING_TRANSITIONS
    for part in _slices(list(dict.fromkeys(finding for finding, _, _ in new))):
        query = sa.select(table.c.finding, table.c.kind, table.c.at).where(table.c.finding.in_(part))
        for finding, kind, at in connection.execute(query):
            new.pop((finding, kind, at), None)
    return list(new.values())


def _transition_key(transition: FindingTransition) -> tuple[str, str, int]:
    return storable_text(transition.finding.id), transition.kind.value, transition.at


def _finding_row(finding: Finding) -> Row:
    cluster = cluster_of(finding.scope)
    return (
        storable_text(finding.id),
        storable_text(finding.rule),
        storable_text(finding.scope),
        None if cluster is None else storable_text(cluster),
        finding.severity.value,
        finding.opened_at,
        finding.closed_at,
        _ENCODER.encode(finding),
    )


_WITH_ACKNOWLEDGEMENT = sa.select(
    FINDINGS.c.id, FINDINGS.c.opened_at, FINDINGS.c.finding, FINDING_ACKNOWLEDGEMENTS.c.until
).select_from(FINDINGS.outerjoin(FINDING_ACKNOWLEDGEMENTS, FINDING_ACKNOWLEDGEMENTS.c.finding == FINDINGS.c.id))


def _get(connection: sa.Connection, id: str, *, lock: bool = False) -> Finding:  # noqa: A002
    query = _WITH_ACKNOWLEDGEMENT.where(FINDINGS.c.id == storable_text(id))
    row = connection.execute(query.with_for_update(of=FINDINGS) if lock else query).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no finding {id!r}")
    return _read(row)


def _read(row: sa.Row[Any, Any, Any, Any]) -> Finding:
    return msgspec.structs.replace(_FINDINGS.decode(row.finding), acknowledged_until=row.until)


def _matching(query: FindingQuery, subjects: Sequence[str] | None) -> sa.Select[Any, Any, Any, Any]:
    """Return the statement for a query, with a part of its subjects."""
    opened_at: sa.ColumnElement[int] = FINDINGS.c.opened_at
    if subjects is not None:
        opened_at = opened_at + 0  # an index of times would be read whole if the subjects have few findings
    order = (opened_at.desc(), FINDINGS.c.id)
    return _WITH_ACKNOWLEDGEMENT.where(*_conditions(query, subjects)).order_by(*order).limit(query.limit)


def _conditions(query: FindingQuery, subjects: Sequence[str] | None) -> Iterator[sa.ColumnElement[bool]]:
    column = FINDINGS.c
    if query.clusters is not None:
        yield column.cluster.in_(_storable(query.clusters))
    if query.rules:
        yield column.rule.in_(_storable(query.rules))
    if query.severities:
        yield column.severity.in_([one.value for one in query.severities])
    if query.scope is not None:
        scope = storable_text(query.scope)
        # Not LIKE, which ignores case in SQLite and uses no index. The order of the column is bytewise.
        is_part = (column.scope >= f"{scope}/") & (column.scope < f"{scope}{_AFTER_SLASH}")
        yield (column.scope == scope) | is_part
    if subjects is not None:
        yield column.scope.in_(subjects)
    yield from _time_conditions(query)


def _time_conditions(query: FindingQuery) -> Iterator[sa.ColumnElement[bool]]:
    column = FINDINGS.c
    yield column.opened_at < query.end
    if query.is_closed is not None:
        yield column.closed_at.is_not(None) if query.is_closed else column.closed_at.is_(None)
    if query.start > 0 and query.is_closed is not False:
        yield column.closed_at.is_(None) | (column.closed_at > query.start)
    if query.after is not None:
        opened_at, id_ = query.after
        yield column.opened_at <= opened_at
        yield (column.opened_at < opened_at) | (column.id > storable_text(id_))


def _storable(texts: Iterable[str]) -> list[str]:
    """Return the texts as they are stored, each once."""
    return list(dict.fromkeys(map(storable_text, texts)))


def _slices(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Return the values in slices that fit in a statement."""
    return (values[start : start + SLICE] for start in range(0, len(values), SLICE))
