"""Process lists: encoding, limits, and receivers that do not know them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import decode, encode, encode_wire, to_rows, to_wire
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.machine import Machine
from gpufleet.model.process import MAX_PROCESSES, PROCESS_READINGS, Process
from gpufleet.model.reading import Sample
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.codecs.batch.batches import GPU, NOW


def process(pid: int, memory: int | Absent = 0, *, start: int | None = None, name: str = "") -> Process:
    shares = dict.fromkeys([reading for reading in PROCESS_READINGS if reading != "memory_bytes"], 0.25)
    return Process(
        pid=pid, kinds=("compute", "mps"), start_time=start, values={"memory_bytes": memory, **shares}, name=name
    )


def batch_of(*processes: Process, listed: bool = True) -> Batch:
    sample = Sample(
        view=GPU,
        reader="nvml",
        lane=Lane.FAST,
        measured_at=NOW,
        values={"gpu_power_watts": 1.0},
        driver_session=7,
        processes=processes if listed else None,
    )
    report = MachineReport(machine=Machine(name="n"), samples=(sample,))
    return Batch(cluster="c", sender="s", epoch="0" * 32, seq=1, sent_at=NOW, reports=(report,))


def sent(batch: Batch) -> tuple[Process, ...] | None:
    (sample,) = to_rows(decode(encode(batch))).reports[0].samples
    return sample.processes


absents = st.builds(Absent, st.sampled_from(Reason), st.text(max_size=20))
processes = st.lists(
    st.builds(
        Process,
        pid=st.integers(0, 2**32 - 1),
        kinds=st.lists(st.sampled_from(["compute", "graphics", "mps"]), max_size=3, unique=True).map(tuple),
        start_time=st.none() | st.integers(0, 2**63 - 1),
        values=st.fixed_dictionaries(
            {
                name: (st.integers(0, 2**64 - 1) if name == "memory_bytes" else st.floats(0, 1)) | absents
                for name in PROCESS_READINGS
            }
        ),
        name=st.text(st.characters(exclude_categories=["Cs"]), max_size=15),
    ),
    max_size=6,
    unique_by=lambda one: one.pid,
)


@given(processes)
def test_process_list_round_trip(table: list[Process]) -> None:
    assert sent(batch_of(*table)) == tuple(sorted(table, key=lambda one: one.pid))


def test_empty_list_differs_from_no_list() -> None:
    assert sent(batch_of()) == ()
    assert sent(batch_of(listed=False)) is None


def test_largest_processes_are_kept_with_the_total_count() -> None:
    table = [process(pid, pid) for pid in range(1000)] + [process(5000, Absent(Reason.NOT_REPORTED))]
    wire = to_wire(batch_of(*table))
    (listed,) = wire.parts[0].processes
    assert (listed.total, len(listed.pids)) == (1001, MAX_PROCESSES)
    assert sorted(listed.pids) == list(range(1000 - MAX_PROCESSES, 1000))


class _PartWithoutProcesses(msgspec.Struct, array_like=True):
    machine: int
    events: list[msgspec.Raw] = []
    readers: list[msgspec.Raw] = []
    holdings: list[msgspec.Raw] = []
    inventory: list[msgspec.Raw] | None = None


class _BatchWithoutProcesses(msgspec.Struct, array_like=True):
    head: msgspec.Raw
    catalogue: msgspec.Raw
    cluster: msgspec.Raw
    sender: msgspec.Raw
    epoch: msgspec.Raw
    seq: msgspec.Raw
    sent_at: msgspec.Raw
    heartbeat: msgspec.Raw
    machines: msgspec.Raw
    views: msgspec.Raw
    absences: msgspec.Raw
    samples: msgspec.Raw
    dims: msgspec.Raw
    parts: list[_PartWithoutProcesses]


def test_older_receiver_ignores_process_lists() -> None:
    """A receiver ignores array elements beyond those that it knows."""
    old = msgspec.msgpack.decode(encode(batch_of(process(1, 5)), compress=False), type=_BatchWithoutProcesses)
    assert old.parts == [_PartWithoutProcesses(0)]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("view", 9, "9 points past the 1 views"),
        ("lane", "x", "not one of"),
        ("provenance", "x", "not one of"),
        ("start_times", [], "0 entries for 1 processes"),
        ("kinds", [[], []], "2 entries for 1 processes"),
        ("names", [], "0 entries for 1 processes"),
        ("absence", [3], "3 points past the 0 absences"),
        ("readings", ["a"] * 5, "a reading is listed twice"),
        ("columns", [], "0 columns for 5 readings"),
        ("columns", [[1], [1], [1], [1], []], "0 entries for 1 processes"),
    ],
)
def test_inconsistent_list_is_rejected_with_its_field(field: str, value: object, error: str) -> None:
    wire = to_wire(batch_of(process(1)))
    setattr(wire.parts[0].processes[0], field, value)
    with pytest.raises(WireError) as caught:
        encode_wire(wire)
    assert caught.value.field.startswith(f"parts[0].processes[0].{field}")
    assert error in str(caught.value)


def test_too_long_list_is_rejected() -> None:
    elements = msgspec.msgpack.decode(encode(batch_of(process(1)), compress=False))
    elements[13][0][5][0][8] = [1] * 1025
    with pytest.raises(WireError) as caught:
        decode(msgspec.msgpack.encode(elements))
    assert caught.value.field == "parts[0].processes[0].pids"


def test_days_of_process_lists_count() -> None:
    wire = to_wire(batch_of(process(1)))
    (listed,) = wire.parts[0].processes
    days = [msgspec.structs.replace(listed, measured_at=day * 86_400 * 10**9 + 1) for day in range(40)]
    wire.parts[0].processes = days
    with pytest.raises(WireLimitError, match="41 different days"):
        encode_wire(wire)
