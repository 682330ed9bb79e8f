"""Records between child and parent, field values and return codes: properties over any input."""

import math
import struct
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.board import (
    drop_activity_without_memory,
    drop_defaults_of_guest,
    drop_empty_protected_memory,
    drop_fabric_defaults,
    drop_place_defaults,
    in_mig_mode,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.reading import Value
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS, LABELS
from gpufleet.readers.nvml.calls.fields import FIELD, decode_fields
from gpufleet.readers.nvml.calls.links import NVLINK_STATE
from gpufleet.readers.nvml.mapping import ROWS, absent_instance, cuda_version, map_device, map_instance, modes_of
from gpufleet.readers.nvml.mapping.lane import LaneCache
from gpufleet.readers.nvml.mapping.row import DeviceModes, MetricRow, read, read_entries
from gpufleet.readers.nvml.parse import absence_of
from gpufleet.readers.nvml.protocol import (
    NO_VALUE,
    UNTOUCHED,
    AttachedRecord,
    BusyRecord,
    CallResult,
    Frames,
    GpuPassRecord,
    InstanceRecord,
    Record,
    SessionRecord,
    encode_frame,
)
from tests.support.profiles import examples

codes = st.just(0) | st.integers(-10, 1100)
scalars = st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
coded = st.lists(st.tuples(codes, st.integers(0, 100) | scalars).map(list), max_size=50)
answers = st.builds(CallResult, codes, values | coded | st.lists(coded, max_size=4), st.integers(0, 2**31))
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(BusyRecord, st.integers(0, 2**40), st.integers(0, 1000)),
    st.builds(AttachedRecord, st.integers(0, 1000), st.text(max_size=50), st.text(max_size=20)),
    st.builds(SessionRecord, st.integers(0, 2**40), codes, st.text(max_size=50)),
)


@given(st.lists(records, max_size=6), st.lists(st.integers(1, 40), max_size=40))
def test_records_survive_any_cut_of_the_stream(sent: list[Record], cuts: list[int]) -> None:
    stream, frames, got = b"".join(map(encode_frame, sent)), Frames(), list[Record]()
    for cut in cuts:
        got += frames.feed(stream[:cut])
        stream = stream[cut:]
    assert [*got, *frames.feed(stream)] == sent


@given(st.binary(max_size=300))
def test_invalid_record_is_a_value_error(data: bytes) -> None:
    try:
        found = Frames().feed(data)
    except ValueError:
        return
    assert all(isinstance(record, typing.get_args(Record)) for record in found)


@given(st.sampled_from(ROWS), answers, st.booleans(), st.booleans())
def test_any_answer_maps_to_a_valid_value_or_an_absence(
    row: MetricRow, answer: CallResult, mig: bool, guest: bool
) -> None:
    metric = CATALOGUE[row.metric]
    assert_admitted(row.metric, read(row, metric, answer, DeviceModes(mig, guest)))
    if row.every:
        entries_read = list(read_entries(row, metric, answer, DeviceModes(mig, guest)))
        assert entries_read or row.omit_if_none
        for labels, value in entries_read:
            assert len(labels) == len(metric.dims)
            assert_admitted(row.metric, value)


@settings(max_examples=examples(15, 500))
@given(st.sampled_from(["fast", "slow", "static"]), st.data())
def test_any_device_record_is_mapped(lane: str, data: st.DataObject) -> None:
    count = len(CALLS[lane])
    given_answers = tuple(data.draw(st.lists(answers, min_size=count, max_size=count)))
    record = GpuPassRecord(1, 0, 1, mig=data.draw(answers), virtualization=data.draw(answers), answers=given_answers)
    mapped, dims = map_device(record, Lane(lane))
    assert mapped.items() >= one_by_one(record, Lane(lane)).items()
    for name, value in mapped.items():
        assert_admitted(name, value)
    for each in dims:
        assert_admitted(each.metric, each.value)


def one_by_one(record: GpuPassRecord, lane: Lane) -> dict[str, Value | Absent]:
    """Return the readings without dimensions, each mapped by the general path."""
    modes, positions = modes_of(record.roles), [call.key for call in CALLS[lane]]
    rows = [(row, CATALOGUE[row.metric]) for row in ROWS if CATALOGUE[row.metric].lane is lane]
    values = {
        metric.name: read(row, metric, record.answers[positions.index(row.call)], modes)
        for row, metric in rows
        if not metric.dims and metric.role is None
    }
    drop_place_defaults(values, values.get("gpu_name"))
    drop_fabric_defaults(values, ())
    drop_activity_without_memory(values)
    drop_empty_protected_memory(values)
    if modes.guest:
        drop_defaults_of_guest(values, ())
    return {name: in_mig_mode(name, value) for name, value in values.items()} if modes.mig else values


def test_malformed_link_states_are_an_invalid_value() -> None:
    calls = [call.key for call in CALLS["slow"]]
    given_answers = [CallResult(0, [[]]) if key == NVLINK_STATE else CallResult(3) for key in calls]
    values, _ = map_device(GpuPassRecord(1, 0, 1, answers=tuple(given_answers)), Lane.SLOW)
    (active,) = [value for name, value in values.items() if name == "gpu_nvlinks_active"]
    assert isinstance(active, Absent)
    assert active.reason is Reason.INVALID_VALUE


@settings(max_examples=examples(10, 300))
@given(st.sampled_from(["fast", "slow", "static"]), st.data())
def test_cached_mapping_equals_uncached_mapping(lane: str, data: st.DataObject) -> None:
    """Some answers of the second pass repeat those of the first, others differ."""
    count, memory = len(CALLS[lane]), LaneCache()
    first = data.draw(st.lists(answers, min_size=count, max_size=count))
    second = [data.draw(st.sampled_from([answer]) | answers) for answer in first]
    mig = data.draw(st.lists(answers, min_size=2, max_size=2))
    for given_answers, mode in zip((first, second, first), (*mig, mig[0]), strict=True):
        record = GpuPassRecord(1, 0, 1, mig=mode, answers=tuple(given_answers))
        assert repr(map_device(record, Lane(lane), memory)) == repr(map_device(record, Lane(lane)))


@pytest.mark.parametrize("lane", ["fast", "slow", "static"])
def test_cached_mapping_of_a_growing_list(lane: str) -> None:
    memory, entry = LaneCache(), [0, 1]
    for value in ([], [entry], [entry] * 2, [entry] * 400, [entry], []):
        record = GpuPassRecord(1, 0, 1, answers=tuple(CallResult(0, value) for _ in CALLS[lane]))
        assert repr(map_device(record, Lane(lane), memory)) == repr(map_device(record, Lane(lane)))


@given(st.sampled_from(["mig", "vgpu"]), st.sampled_from(["fast", "slow", "static"]), st.data())
def test_any_instance_record_is_mapped(kind: str, lane: str, data: st.DataObject) -> None:
    count = len(INSTANCE_CALLS[kind][lane])
    given_answers = tuple(data.draw(st.lists(answers, min_size=count, max_size=count)))
    parts = st.sampled_from(["uuid", "name", "gpu_instance", "compute_instance"])
    record = InstanceRecord(kind, data.draw(st.dictionaries(parts, answers)), answers=given_answers)
    mapped, dims = map_instance(record, Lane(lane), GpuPassRecord(1, 0, 1))
    absent, absent_dims = absent_instance(kind, Absent(Reason.TIMEOUT), Lane(lane))
    assert [(each.metric, each.labels) for each in dims] == [(each.metric, each.labels) for each in absent_dims]
    assert set(absent) == set(mapped)
    for name, value in (*mapped.items(), *((each.metric, each.value) for each in dims)):
        assert_admitted(name, value)


def assert_admitted(name: str, value: Value | Absent) -> None:
    metric = CATALOGUE[name]
    if isinstance(value, Absent):
        return
    if metric.states:
        assert value in metric.states
    elif isinstance(value, str):
        assert metric.type == "text"
        assert value
    else:
        assert math.isfinite(value)
        assert metric.low is None or value >= metric.low
        assert metric.high is None or value <= metric.high


@given(codes)
def test_every_code_has_a_reason_and_the_same_detail_each_time(code: int) -> None:
    assert absence_of(code, "call") == absence_of(code, "call")
    assert absence_of(code, "call").detail.startswith("call")


entries = st.builds(
    FIELD.pack,
    st.integers(0, 400),
    st.just(0),
    st.integers(0, 2**50),
    st.integers(0, 2**30),
    st.integers(0, 12),
    codes,
    st.integers(0, 2**64 - 1),
)


@given(st.lists(entries, max_size=20))
def test_any_field_entries_decode(raw: list[bytes]) -> None:
    decoded = decode_fields(b"".join(raw))
    assert len(decoded) == len(raw)
    for entry in decoded:
        if isinstance(entry, list):
            code, value = entry
            assert code != 0
            assert value is None
        else:
            assert isinstance(entry, int | float)


def test_field_is_decoded_by_its_own_type() -> None:
    def entry(kind: int, packed: bytes, code: int = 0, timestamp: int = 1) -> bytes:
        return FIELD.pack(1, 0, timestamp, 0, kind, code, int.from_bytes(packed.ljust(8, b"\xff"), "little"))

    cases = {
        (0, struct.pack("<d", 1.5)): 1.5,
        (1, struct.pack("<I", 7)): 7,
        (2, struct.pack("<Q", 2**40)): 2**40,
        (3, struct.pack("<Q", 2**63)): 2**63,
        (4, struct.pack("<q", -3)): -3,
        (5, struct.pack("<i", -4)): -4,
        (6, struct.pack("<H", 9)): 9,
    }
    for (kind, packed), value in cases.items():
        assert decode_fields(entry(kind, packed)) == [value]
    assert decode_fields(entry(7, b"")) == [[UNTOUCHED, None]]
    assert decode_fields(entry(0, bytes(8), timestamp=0)) == [[UNTOUCHED, None]]
    assert decode_fields(entry(3, bytes(8), code=3)) == [[3, None]]


def test_all_ones_in_the_width_of_a_field_are_no_value() -> None:
    """The width is that of the type which the driver reports, whatever the catalogue row expects."""

    def entry(kind: int, bits: int) -> bytes:
        return FIELD.pack(1, 0, 1, 0, kind, 0, bits)

    for kind, width in {1: 32, 2: 64, 3: 64, 6: 16}.items():
        assert decode_fields(entry(kind, 2**64 - 1)) == [[NO_VALUE, None]]
        assert decode_fields(entry(kind, 2**width - 2)) == [2**width - 2]
    assert decode_fields(entry(3, 0xFFFF_FFFF)) == [0xFFFF_FFFF]  # a valid value of a 64-bit counter
    assert decode_fields(entry(5, 2**64 - 1)) == [-1]  # a negative temperature
    assert absence_of(NO_VALUE, "FI 1") == Absent(Reason.INVALID_VALUE, "FI 1")


def test_each_call_has_a_unique_label() -> None:
    assert len(set(LABELS)) == len(LABELS)
    assert Absent(Reason.TIMEOUT, LABELS[1]).detail == "nvmlInitWithFlags"


def test_cuda_version_is_formatted() -> None:
    assert [cuda_version(number) for number in (12_080, 13_000)] == ["12.8", "13.0"]
    assert [cuda_version(number) for number in (0, -1, 0xFFFF_FFFF, "13.0", None)] == [None] * 5
