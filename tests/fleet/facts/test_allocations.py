"""Facts about allocations: what their answers show."""

import datetime as dt

import msgspec
import pytest

from gpufleet.fleet.attribution.contract import unavailable
from gpufleet.fleet.facts.allocations import AllocationReading, AnswerReading, allocation_table, answer_reading
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Binding, Target
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, ViewKind
from tests.fakes.batches import gpu_sample, gpu_view
from tests.fleet.attribution.answers import NOW, answer_for, bare_metal, stored

BEFORE = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
LATER = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
PROBE, NOWHERE = Provenance.HOST_LOCAL_PROBE, Provenance.UNAVAILABLE


def allocation(id_: str, machine: str = "m", *, tenant: str = "t", bound: bool = True, **spec: object) -> Allocation:
    fields: dict[str, object] = {
        "kind": AllocationKind.BARE_METAL,
        "target": Target(cluster="c", machine=machine),
        "tenant": tenant,
        "valid_from": BEFORE,
        **spec,
    }
    bindings = (Binding(machine=machine),) if bound else ()
    return Allocation(
        id=id_,
        generation=1,
        spec=AllocationSpec(**fields),  # type: ignore[arg-type]
        created_at=BEFORE,
        bindings=bindings,
    )


def device(number: int, source: Provenance = PROBE, kind: ViewKind = ViewKind.GPU) -> AnswerDevice:
    return AnswerDevice(
        id=f"c/m/{kind}/{number}", machine="m", kind=kind, side=Side.HOST, uuid=str(number), source=source, readings={}
    )


def answered(one: Allocation, *devices: AnswerDevice) -> AllocationAnswer:
    return msgspec.structs.replace(
        unavailable(one, Reason.STALE, ""), source=PROBE, reason=None, devices=devices, machine="m"
    )


@pytest.mark.parametrize(
    ("answer", "devices", "answers"),
    [
        (answered(allocation("a"), device(1), device(2), device(3, NOWHERE)), 2, True),
        (answered(allocation("a", devices=("MIG-1", "MIG-2")), device(1, kind=ViewKind.MIG)), 1, True),
        (unavailable(allocation("a"), Reason.STALE, ""), None, False),
        (unavailable(allocation("a"), Reason.NOT_REPORTED, ""), 0, False),
    ],
)
def test_answer_shows_the_present_devices(answer: AllocationAnswer, devices: int | None, *, answers: bool) -> None:
    found = answer_reading(answer)
    assert (found.answers, found.devices) == (answers, devices)
    assert found.reason == ("" if answer.reason is None else answer.reason.value)


@pytest.mark.parametrize("devices", [("GPU-1", "GPU-2"), None])
def test_gpu_that_is_no_longer_reported_is_not_present(devices: tuple[str, ...] | None) -> None:
    def sampled(number: int, age: float, lane: Lane = Lane.FAST) -> list[StoredSample]:
        sample = msgspec.structs.replace(gpu_sample(gpu_view(number), NOW - int(age * NANOS)), lane=lane)
        static = msgspec.structs.replace(sample, lane=Lane.STATIC, values={"gpu_name": "H100"})
        return [stored(sample, age), stored(static, 30)]

    found = {}
    for age in (5, 500):
        answer = answer_for(bare_metal(devices=devices, expected={"h100": 2}), [*sampled(1, 5), *sampled(2, age)])
        assert [one.uuid for one in answer.devices] == ["GPU-1", "GPU-2"]
        found[age] = answer_reading(answer)
    assert {age: (one.answers, one.devices) for age, one in found.items()} == {5: (True, 2), 500: (True, 1)}


def test_table_has_the_expected_devices() -> None:
    reading = AllocationReading(
        cluster="c", id="a", expected_devices=8, answer=AnswerReading(answers=False, reason="x")
    )
    table = allocation_table([reading, AllocationReading(cluster="c", id="b", retired=True)], [0, 0], [-1, -1])
    assert list(table.keys) == ["c/a", "c/b"]
    assert table.column("expected_devices")[0] == 8
    assert table.column("answers")[0] == 0
    assert table.text("reason", 0) == "x"
    assert table.text("reason", 1) is None
    assert table.retired.tolist() == [False, True]
