"""Batches: rows to bytes and back."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import decode, encode, encode_wire, to_rows, to_wire
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.holdings import DeviceState, HolderState, Holding
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.codecs.batch.batches import EXAMPLE, GPU, NOW, batches, in_order
from tests.codecs.batch.cluster_parts import PART
from tests.codecs.batch.fixtures.render import HOLDER_STATES, UNRESOLVED
from tests.support.holdings import HOLDINGS


def batch_of(*samples: Sample) -> Batch:
    return Batch(
        cluster="c",
        sender="s",
        epoch="0" * 32,
        seq=1,
        sent_at=NOW,
        reports=(MachineReport(machine=Machine(name="n"), samples=samples),),
    )


def sample_of(values: dict[str, Value | Absent], *dims: DimValue, measured_at: int = NOW) -> Sample:
    return Sample(view=GPU, reader="nvml", lane=Lane.FAST, measured_at=measured_at, values=values, dims=dims)


def sent(batch: Batch) -> Batch:
    return to_rows(decode(encode(batch)))


@pytest.mark.parametrize("compress", [True, False])
def test_example(compress: bool) -> None:
    assert to_rows(decode(encode(EXAMPLE, compress=compress))) == EXAMPLE


@given(batches, st.booleans())
def test_any_batch(batch: Batch, compress: bool) -> None:
    assert in_order(to_rows(decode(encode(batch, compress=compress)))) == in_order(batch)


def test_every_field_of_a_cluster_part_travels() -> None:
    batch = msgspec.structs.replace(batch_of(), cluster_part=PART)
    assert sent(batch) == batch


@given(st.lists(HOLDINGS, max_size=4))
def test_every_field_of_a_holding_travels(holdings: list[Holding]) -> None:
    report = MachineReport(machine=Machine(name="n"), holdings=tuple(holdings))
    batch = msgspec.structs.replace(batch_of(), reports=(report,))
    assert sent(batch) == batch


@pytest.mark.parametrize("states", [None, (), HOLDER_STATES])
def test_holder_states_travel_and_none_is_not_an_empty_list(states: tuple[DeviceState, ...] | None) -> None:
    report = MachineReport(machine=Machine(name="n"), device_holders=states, unresolved=UNRESOLVED if states else ())
    batch = msgspec.structs.replace(batch_of(), reports=(report,))
    assert sent(batch) == batch


def test_holder_state_of_a_newer_build_is_unknown() -> None:
    report = MachineReport(machine=Machine(name="n"), device_holders=HOLDER_STATES)
    elements = msgspec.msgpack.decode(encode(msgspec.structs.replace(batch_of(), reports=(report,)), compress=False))
    elements[13][0][6][1]["state"] = "reserved"
    (decoded,) = to_rows(decode(msgspec.msgpack.encode(elements))).reports
    assert decoded.device_holders is not None
    assert decoded.device_holders[1].state is HolderState.UNKNOWN


@pytest.mark.parametrize("value", [0, 2**53 + 1, 2**63, 2**64 - 1, -1, -(2**63)])
def test_integers_stay_exact_integers(value: int) -> None:
    (sample,) = sent(batch_of(sample_of({"a": value}))).reports[0].samples
    assert sample.values == {"a": value}
    assert type(sample.values["a"]) is int


def test_an_integral_float_stays_a_float() -> None:
    (sample,) = sent(batch_of(sample_of({"a": 3.0}))).reports[0].samples
    assert type(sample.values["a"]) is float


def test_nan_is_kept() -> None:
    (sample,) = sent(batch_of(sample_of({"a": math.nan}))).reports[0].samples
    value = sample.values["a"]
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (2**64, "does not fit in 64 bits"),
        (-(2**63) - 1, "does not fit in 64 bits"),
        (True, "a boolean, not a number"),
        ("x" * 1025, "longer than 1024 characters"),
    ],
)
def test_unencodable_value_becomes_absent(value: Value, detail: str) -> None:
    (sample,) = sent(batch_of(sample_of({"a": value, "b": 1}, DimValue("d", ("x",), value)))).reports[0].samples
    expected = Absent(Reason.INVALID_VALUE, detail)
    assert sample.values == {"a": expected, "b": 1}
    assert sample.dims == (DimValue("d", ("x",), expected),)


def test_long_texts_are_cut() -> None:
    absent = Absent(Reason.DRIVER_ERROR, "w" * 5000)
    (sample,) = sent(batch_of(sample_of({"a": absent}, DimValue("d", ("l" * 9000,), 1)))).reports[0].samples
    assert sample.values["a"] == Absent(Reason.DRIVER_ERROR, "w" * 1024)
    assert sample.dims[0].labels == ("l" * 4096,)


def test_samples_of_the_same_metrics_share_a_block() -> None:
    wire = to_wire(batch_of(*(sample_of({"a": n, "b": n}, measured_at=NOW + n) for n in range(5))))
    (block,) = wire.samples
    assert block.columns == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert wire.views == [GPU]


def test_equal_absences_are_sent_once() -> None:
    absent = Absent(Reason.NOT_SUPPORTED)
    wire = to_wire(batch_of(*(sample_of({"a": absent, "b": n}, measured_at=NOW + n) for n in range(5))))
    assert len(wire.absences) == 1
    assert wire.samples[0].absence == [0] * 5


def test_a_sample_without_any_values_is_kept() -> None:
    batch = batch_of(sample_of({}))
    assert sent(batch) == batch


@pytest.mark.parametrize(
    ("field", "batch"),
    [
        ("epoch", Batch(cluster="c", sender="s", epoch="0" * 31 + "G", seq=1, sent_at=NOW)),
        ("cluster", Batch(cluster="", sender="s", epoch="0" * 32, seq=1, sent_at=NOW)),
        ("sender", Batch(cluster="c", sender="s" * 254, epoch="0" * 32, seq=1, sent_at=NOW)),
        ("seq", Batch(cluster="c", sender="s", epoch="0" * 32, seq=0, sent_at=NOW)),
        ("sent_at", Batch(cluster="c", sender="s", epoch="0" * 32, seq=1, sent_at=0)),
    ],
)
def test_encode_rejects_invalid_fields(field: str, batch: Batch) -> None:
    with pytest.raises(WireError) as caught:
        encode(batch)
    assert caught.value.field == field


def test_encode_rejects_a_body_beyond_the_limits() -> None:
    wire = to_wire(batch_of(sample_of({"a": 1.5})))
    block = wire.samples[0]
    for name in ("machine", "view", "measured_at", "driver_session", "absence"):
        setattr(block, name, getattr(block, name) * 500_000)
    block.columns = [[1.5] * 500_000]
    with pytest.raises(WireLimitError, match=r"body of \d+ bytes, more than 8388608"):
        encode_wire(wire, compress=False)
