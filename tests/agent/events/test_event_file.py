"""The file of an agent's events."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.agent.events.changes import LastEnergy
from gpufleet.agent.events.event_file import LastPasses, SavedEvents, event_file
from gpufleet.agent.events.occupants import Occupant
from gpufleet.agent.events.xids import XidCounts
from gpufleet.model.event import Event
from tests.support.passes import gpu

SAVED = SavedEvents(
    boot="boot-1",
    log_seq=7,
    xids=XidCounts(since=1, counts={gpu(0).key: {79: 2}}, last={gpu(0).key: (79, 5)}, places={}),
    driver="570.1",
    session=3,
    last=LastPasses(session_at=4, energies={gpu(0).key: {"nvml": LastEnergy(500.0, 6, 3)}}),
    events=(Event(view=gpu(0), kind="xid", code=79, at=5),),
    occupants={"0000:01:00.0": Occupant(gpu(0).key, 2)},
)


def test_saved_events_are_loaded(tmp_path: Path) -> None:
    event_file(tmp_path / "agent" / "events.json").save(SAVED)
    assert event_file(tmp_path / "agent" / "events.json").load() == SAVED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, False), ({"last": LastPasses(session_at=9)}, False), ({"log_seq": 8}, True), ({"occupants": {}}, True)],
)
def test_pass_without_an_event_is_no_difference(changes: dict[str, object], expected: bool) -> None:
    """The file is not written after every pass."""
    assert SAVED.differs(None)
    assert msgspec.structs.replace(SAVED, **changes).differs(SAVED) is expected
