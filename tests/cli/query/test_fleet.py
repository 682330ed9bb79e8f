"""Tables of `gpufleet query fleet` and `query senders`."""

import pytest

from gpufleet.cli.query.fleet import senders_tables
from gpufleet.cli.table import Cell, TextTable
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.time import NANOS, to_datetime

AT = 10**18


@pytest.mark.parametrize(("answered_at", "text"), [(None, ""), (AT - 26 * NANOS, "27 s"), (AT, "1 s")])
def test_sender_is_seen_at_its_last_answer(answered_at: int | None, text: str) -> None:
    state = State.NEVER_SEEN if answered_at is None else State.LIVE
    found = SenderRecord(
        cluster="c",
        sender="exporter/exporter/gpu-1",
        sent_at=to_datetime(AT),
        received_at=to_datetime(AT),
        age_seconds=1.0,
        last_seen_at=None if answered_at is None else to_datetime(answered_at),
        heartbeat_interval_seconds=30.0,
        liveness=Liveness(state=state, unseen_seconds=None),
        clock_ahead_seconds=None,
        complete_up_to=None,
        version="",
        queue_records=None,
        oldest_unsent=None,
        dropped_total=None,
        missing=0,
        epochs=(),
    )
    (table,) = senders_tables((found,))
    assert isinstance(table, TextTable)
    (row,) = table.rows
    cell = row[[one.name for one in table.columns].index("seen")]
    assert isinstance(cell, Cell)
    assert cell.text == text
