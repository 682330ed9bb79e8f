"""Answers of pods and jobs from the machines of their devices."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.attribution.contract import unavailable
from gpufleet.fleet.attribution.guests import MachineSamples
from gpufleet.fleet.attribution.holding_intervals import HeldInterval, held_intervals
from gpufleet.fleet.attribution.workloads import answer, with_held_devices
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import XID_ALL, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict, Share
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Scope, Side, View, ViewKind
from tests.fakes.batches import gpu_view
from tests.fleet.attribution.answers import record, shown_values
from tests.support.profiles import examples

NOW = 1_000 * NANOS
STALE_AFTER = 120.0
ONE, TWO = gpu_view(1), gpu_view(2)
POD = Holder(kind=HolderKind.POD, id="a")
OTHER = Holder(kind=HolderKind.POD, id="b")


def allocation(**more: object) -> Allocation:
    target = Target(cluster="local", pod_uid="a")
    spec = AllocationSpec(
        kind=AllocationKind.KUBERNETES_POD,
        target=target,
        valid_from=to_datetime(0),
        **more,  # type: ignore[arg-type]
    )
    return Allocation(id="x", generation=1, spec=spec, created_at=to_datetime(0))


def held(view: View, since: int = 100, *, machine: str = "m-a", holder: Holder = POD, **more: object) -> StoredHolding:
    fields = {"verdict": HoldingVerdict.AGREED, "methods": ("kubelet",), **more}
    holding = Holding(view=view.key, holder=holder, since=since * NANOS, **fields)  # type: ignore[arg-type]
    return StoredHolding(cluster="local", machine=machine, holding=holding, reported_at=NOW)


def power(view: View | None, watts: float, at: int = 999, age: float = 1.0, **more: object) -> StoredSample:
    fields = {"values": {"gpu_power_watts": watts}, "reader": "nvml", "lane": Lane.FAST, **more}
    sample = Sample(view=view, measured_at=at * NANOS, **fields)  # type: ignore[arg-type]
    return StoredSample(sample=sample, received_at=NOW - int(age * NANOS))


def machine(stored: Sequence[StoredSample], id_: str = "m-a", readers: Sequence[ReaderStatus] = ()) -> MachineSamples:
    return MachineSamples(machine=record(id_), stored=stored, readers=readers)


def answer_for(
    holdings: Sequence[StoredHolding], *machines: MachineSamples, one: Allocation | None = None
) -> AllocationAnswer:
    found = one or allocation()
    intervals = held_intervals(found, holdings, NOW)
    return answer(found, intervals, holdings, machines, NOW, stale_after_seconds=STALE_AFTER, any_holder=bool(holdings))


def test_only_the_held_device_answers() -> None:
    found = answer_for([held(ONE)], machine([power(ONE, 1.0), power(TWO, 2.0), power(None, 3.0)]))
    assert (found.source, found.reason, found.machine) == (Provenance.HOST_LOCAL_PROBE, None, "m-a")
    assert [one.uuid for one in found.devices] == ["GPU-1"]
    assert set(shown_values(found)) == {1.0}
    assert found.host == {}


@pytest.mark.parametrize("holdings", [[held(ONE)], [held(ONE), held(TWO)]], ids=["one", "both"])
def test_held_device_names_no_linked_gpu_of_others(holdings: list[StoredHolding]) -> None:
    samples = [power(one, 1.0) for one in (ONE, TWO)]
    link = DimValue("gpu_nvlink_gpu_links", (TWO.pci_address or "",), 4)
    linked = msgspec.structs.replace(samples[0].sample, dims=(link,))
    found = answer_for(holdings, machine([msgspec.structs.replace(samples[0], sample=linked), samples[1]]))
    assert sum(len(one.dimensions) for one in found.devices) == len(holdings) - 1


def test_lost_gpu_without_uuid_answers_for_its_holder() -> None:
    slot = View(kind=ViewKind.GPU, side=Side.HOST, pci_address=ONE.pci_address)
    lost = power(slot, 0, values={"gpu_state": "lost", "gpu_power_watts": Absent(Reason.GPU_LOST)})
    found = answer_for([held(ONE)], machine([power(ONE, 1.0, at=500, age=500), lost, power(TWO, 2.0)]))
    (device,) = found.devices
    assert (found.reason, device.readings["gpu_state"].value) == (None, "lost")
    assert device.holding is not None


def test_lost_gpu_is_not_of_the_holder_of_the_gpu_before() -> None:
    """Its card was replaced, and the holding of the earlier card has not ended yet."""
    slot = View(kind=ViewKind.GPU, side=Side.HOST, pci_address=ONE.pci_address)
    later = msgspec.structs.replace(slot, uuid="GPU-9")
    lost = power(slot, 0, values={"gpu_state": "lost", "gpu_power_watts": Absent(Reason.GPU_LOST)})
    found = answer_for([held(ONE)], machine([power(ONE, 1.0, at=500), power(later, 1.0, at=600), lost]))
    (device,) = found.devices
    assert (device.uuid, "gpu_state" in device.readings) == (ONE.uuid, False)


def test_holder_of_every_gpu_has_no_readings_of_the_machine() -> None:
    """Pods without GPUs use the machine, too."""
    found = answer_for([held(ONE), held(TWO)], machine([power(ONE, 1.0), power(TWO, 2.0), power(None, 9.0)]))
    assert set(shown_values(found)) == {1.0, 2.0, 1.0 + 2.0}
    assert (found.host, found.host_dimensions) == ({}, ())


def test_containers_of_one_device_are_one_device() -> None:
    both = [held(ONE, container=name, share=Share.TIMESLICE, replicas=1) for name in "yx"]
    (device,) = answer_for(both, machine([power(ONE, 1.0)])).devices
    assert device.holding is not None
    assert (device.holding.containers, device.holding.replicas) == (("x", "y"), 2)
    assert device.readings["gpu_power_watts"].scope is Scope.SHARED_DEVICE


def test_readings_of_the_gpu_of_a_mig_device_are_its_parents() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", pci_address=ONE.pci_address, parent=ONE.key)
    used = power(mig, 0, values={"gpu_memory_used_bytes": 5})
    (device,) = answer_for([held(mig, share=Share.MIG)], machine([power(ONE, 1.0), used])).devices
    assert device.readings["gpu_memory_used_bytes"].scope is Scope.OWN
    assert (device.readings["gpu_power_watts"].value, device.readings["gpu_power_watts"].scope) == (1.0, Scope.PARENT)


def test_xids_of_the_gpu_are_not_shown_for_a_mig_device() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=ONE.key)
    xid = power(ONE, 0, values=dict.fromkeys([XID_LAST, XID_LAST_AT, XID_ALL, XID_SINCE, "gpu_power_watts"], 31))
    samples = [xid, power(mig, 0, values={"gpu_memory_used_bytes": 5})]
    (device,) = answer_for([held(mig, share=Share.MIG)], machine(samples)).devices
    assert set(device.readings) == {"gpu_memory_used_bytes", "gpu_power_watts"}
    (device,) = answer_for([held(ONE)], machine(samples)).devices
    assert {XID_LAST, XID_LAST_AT, XID_ALL, XID_SINCE} <= device.readings.keys()


def test_stale_machine_costs_its_own_devices() -> None:
    holdings = [held(ONE), held(TWO, machine="m-b")]
    old = machine([power(TWO, 2.0, age=500)], "m-b")
    found = answer_for(holdings, machine([power(ONE, 1.0)]), old)
    assert (found.source, found.reason, found.machine) == (Provenance.HOST_LOCAL_PROBE, None, None)
    assert found.aggregate.coverage == "1 of 2 devices"
    assert found.devices[1].readings["gpu_power_watts"].absent is Reason.STALE
    found = answer_for(holdings[1:], old)
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.STALE)
    assert shown_values(found) == []


def test_held_device_that_its_machine_does_not_report_has_a_reason() -> None:
    found = answer_for([held(ONE)], machine([power(TWO, 2.0)]))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.NOT_REPORTED)
    assert [one.id for one in found.devices] == ["local/m-a/gpu/GPU-1"]
    assert shown_values(found) == []


def test_uncertain_device_is_counted_and_not_shown() -> None:
    uncertain = held(TWO, verdict=HoldingVerdict.UNKNOWN)
    found = answer_for([held(ONE), uncertain], machine([power(ONE, 1.0), power(TWO, 2.0)]))
    assert found.aggregate.coverage == "1 of 2 devices"
    assert "1 of 2 devices" in found.detail
    assert set(shown_values(found)) == {1.0}


@pytest.mark.parametrize(
    ("state", "shown"),
    [(ReaderState.FAILED, "nvml: timeout: The call did not return in time."), (ReaderState.PARTIAL, None)],
)
def test_error_has_a_fixed_text_unless_single_devices_failed(state: ReaderState, shown: str | None) -> None:
    failing = ReaderStatus(
        reader="nvml",
        lane=Lane.FAST,
        interval_seconds=10,
        state=state,
        last_error="GPU-1: in use by alice",
        error_class="timeout",
        last_attempt=NOW,
    )
    found = answer_for([held(ONE)], machine([power(ONE, 1.0)], readers=[failing]))
    assert found.last_error == shown


@pytest.mark.parametrize(
    ("kind", "target", "any_holder"),
    [
        (AllocationKind.KUBERNETES_POD, Target(cluster="local", pod_uid="a"), False),
        (AllocationKind.SLURM_JOB, Target(cluster="local", job_id="7"), True),
        (AllocationKind.SLURM_JOB, Target(cluster="local", job_id="7+1"), True),
    ],
)
def test_target_without_holdings_is_not_attributed(kind: AllocationKind, target: Target, any_holder: bool) -> None:
    one = allocation()
    spec = AllocationSpec(kind=kind, target=target, expected={"H100": 8})
    one = Allocation(id="x", generation=1, spec=spec, created_at=one.created_at)
    found = answer(one, (), (), (), NOW, stale_after_seconds=STALE_AFTER, any_holder=any_holder)
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.NOT_ATTRIBUTED)
    assert found.aggregate.coverage == "0 of 8 devices"


def test_details_of_targets_without_holdings_differ() -> None:
    ended, lost = held(ONE, until=500 * NANOS), held(ONE)
    lost = StoredHolding(cluster="local", machine="m-a", holding=lost.holding, reported_at=-5_000 * NANOS)
    found = [
        answer(allocation(), (), stored, (), NOW, stale_after_seconds=STALE_AFTER, any_holder=any_holder)
        for stored, any_holder in (((), False), ((), True), ((ended,), True), ((lost,), True))
    ]
    assert {one.reason for one in found} == {Reason.NOT_ATTRIBUTED}
    assert len({one.detail for one in found}) == 4


def test_devices_of_a_hypervisor_do_not_repeat_the_detail() -> None:
    """The detail of the answer can have ids of machines, which a tenant does not see."""
    held = HeldInterval(machine="m-a", view=ONE.key, start=0, end=2 * NOW, scope=Scope.OWN, since=0)
    ambiguous = unavailable(allocation(), Reason.AMBIGUOUS_TARGET, "several agents read it: m-a, m-b")
    (device,) = with_held_devices(ambiguous, [held], [record("m-a")], NOW).devices
    assert {(one.absent, one.detail) for one in device.readings.values()} == {(Reason.AMBIGUOUS_TARGET, "")}


holdings = st.lists(
    st.builds(
        held,
        view=st.sampled_from([ONE, TWO]),
        since=st.integers(980, 1_000),
        holder=st.sampled_from([POD, OTHER]),
        share=st.sampled_from(Share),
        verdict=st.sampled_from(HoldingVerdict),
        until=st.none() | st.integers(985, 1_005).map(lambda second: second * NANOS),
        container=st.sampled_from(["", "x"]),
    ),
    max_size=5,
)
samples = st.lists(
    st.builds(
        power,
        view=st.sampled_from([ONE, TWO, None]),
        watts=st.just(0.0),
        at=st.integers(975, 999),
        reader=st.sampled_from(["nvml", "dcgm"]),
        lane=st.sampled_from([Lane.FAST, Lane.SLOW]),
    ),
    max_size=8,
    unique_by=lambda one: (one.sample.view, one.sample.reader, one.sample.lane),
)


@settings(max_examples=examples(200, 3000), deadline=None)
@given(holdings, samples)
def test_no_value_is_from_outside_a_certain_holding(every: list[StoredHolding], unnumbered: list[StoredSample]) -> None:
    measured = [
        power(one.sample.view, float(number), one.sample.measured_at // NANOS, reader=one.sample.reader,
              lane=one.sample.lane)
        for number, one in enumerate(unnumbered, 1)
    ]  # fmt: skip
    found = answer_for(every, machine(measured))
    shown = [one.value for device in found.devices for one in device.readings.values() if one.value is not None]
    for watts in shown:
        (sample,) = [one.sample for one in measured if one.sample.values["gpu_power_watts"] == watts]
        assert sample.view is not None
        assert any(
            one.holding.holder == POD
            and one.holding.view == sample.view.key
            and one.holding.verdict not in (HoldingVerdict.CONFLICT, HoldingVerdict.UNKNOWN, HoldingVerdict.NONE)
            and one.holding.since <= sample.measured_at
            and (one.holding.until is None or one.holding.until > NOW)
            for one in every
        ) or any_chain(every, sample.view, sample.measured_at)


def any_chain(every: Sequence[StoredHolding], view: View, at: int) -> bool:
    """Return whether certain holdings of the pod, one after the other, cover the time from `at` until now."""
    own = [
        (one.holding.since, one.holding.until or NOW + 1)
        for one in every
        if one.holding.holder == POD
        and one.holding.view == view.key
        and one.holding.verdict not in (HoldingVerdict.CONFLICT, HoldingVerdict.UNKNOWN, HoldingVerdict.NONE)
    ]
    return all(any(a <= second * NANOS < b for a, b in own) for second in range(at // NANOS, NOW // NANOS + 1))
