"""Batches from the frames of a recording: times, subjects, and repeated readings."""

import datetime as dt

import msgspec
import pytest

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import EventKind, EventReport
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Reading
from gpufleet.model.snapshot import Snapshot, Source
from gpufleet.model.time import NANOS, to_ns
from gpufleet.model.view import Scope
from gpufleet.model.wire.batch import Batch
from gpufleet.recording.reports import RecordedBatches
from tests.support.recordings import AT
from tests.support.snapshots import example_guest, held_snapshot

RECORDING = bytes(range(16))


def batches_of(*snapshots: Snapshot) -> list[Batch]:
    batches = RecordedBatches("c", RECORDING)
    return [to_rows(decode(batches.batch(one, AT + place * NANOS))) for place, one in enumerate(snapshots)]


def changed(snapshot: Snapshot, **readings: Reading) -> Snapshot:
    """Return the snapshot with other readings of its first device."""
    first, *others = snapshot.devices
    first = msgspec.structs.replace(first, readings={**first.readings, **readings})
    return msgspec.structs.replace(snapshot, devices=(first, *others))


def test_samples_have_the_times_of_their_readings() -> None:
    snapshot = held_snapshot()
    (batch,) = batches_of(snapshot)
    assert (batch.cluster, batch.epoch, batch.seq, batch.sent_at) == ("c", RECORDING.hex(), 1, AT)
    (report,) = batch.reports
    assert report.machine == snapshot.node
    for device in snapshot.devices:
        samples = [one for one in report.samples if one.view == device.view]
        values = {name: (value, one) for one in samples for name, value in one.values.items()}
        measured = {name: one for name, one in device.readings.items() if one.reader and one.measured_at}
        assert values.keys() == measured.keys()
        for name, reading in measured.items():
            value, sample = values[name]
            expected = reading.value if reading.absent is None else Absent(reading.absent, reading.detail)
            assert value == expected
            assert reading.measured_at is not None
            assert (sample.reader, sample.measured_at) == (reading.reader, to_ns(reading.measured_at))
        assert sum(len(one.dims) for one in samples) == len(device.dimensions)
    assert any(one.view is None and "host_load_1m" in one.values for one in report.samples)
    assert {one.lane for one in report.readers} == {Lane.STATIC, Lane.SLOW, Lane.FAST}
    assert report.inventory == snapshot.host.pci
    assert {one.holder.name for one in report.holdings} == {
        holding.holder.name for device in snapshot.devices if device.holders for holding in device.holders.holdings
    }


def test_repeated_readings_are_sent_once() -> None:
    snapshot = held_snapshot()
    later = snapshot.measured_at + dt.timedelta(seconds=5)
    newer = changed(snapshot, gpu_power_watts=Reading(value=99.0, reader="nvml", measured_at=later))
    first, second, third = batches_of(snapshot, snapshot, newer)
    assert first.reports[0].samples
    assert (second.reports[0].samples, second.reports[0].holdings, second.reports[0].device_holders) == ((), (), None)
    (sample,) = third.reports[0].samples
    assert (sample.values, sample.measured_at) == ({"gpu_power_watts": 99.0}, to_ns(later))
    assert [one.seq for one in (first, second, third)] == [1, 2, 3]


def test_readings_that_were_not_measured_here_are_not_sent() -> None:
    at = held_snapshot().measured_at
    snapshot = changed(
        held_snapshot(),
        gpu_power_watts=Reading(absent=Reason.STALE, reader="nvml", measured_at=at),
        gpu_temperature_celsius=Reading(value=40, reader="nvml", measured_at=at, scope=Scope.PARENT),
        gpu_fan_speed_rpm=Reading(value=1.0, measured_at=at),  # no reader
        gpu_sm_clock_hertz=Reading(value=1.0, reader="nvml"),  # no time
    )
    (batch,) = batches_of(snapshot)
    sent = {name for one in batch.reports[0].samples if one.view == snapshot.devices[0].view for name in one.values}
    assert sent.isdisjoint({"gpu_power_watts", "gpu_temperature_celsius", "gpu_fan_speed_rpm", "gpu_sm_clock_hertz"})
    assert "gpu_memory_used_bytes" in sent


def test_machines_of_a_recording_are_compared_with_themselves() -> None:
    nodes = [
        msgspec.structs.replace(held_snapshot(), node=Machine(name=name, machine_id=number * 32))
        for name, number in (("a", "1"), ("b", "2"), ("a", "3"))
    ]
    batches = batches_of(*nodes, *nodes)
    assert [one.reports[0].machine for one in batches] == [one.node for one in (*nodes, *nodes)]
    assert [len(one.reports[0].samples) > 0 for one in batches] == [True] * 3 + [False] * 3
    assert [len(one.reports[0].holdings) > 0 for one in batches] == [True] * 3 + [False] * 3
    assert [len(one.reports[0].events) == len(nodes[0].events) for one in batches[:3]] == [True] * 3
    assert not any(one.reports[0].events for one in batches[3:])


@pytest.mark.parametrize("device", ["gpu/GPU-gone", "gpu/pci/0000:2b:00.0"])
def test_event_of_a_device_that_left_is_sent(device: str) -> None:
    event = EventReport(at=held_snapshot().measured_at, kind=EventKind.GPU_LOST, device=device)
    (batch,) = batches_of(msgspec.structs.replace(held_snapshot(), events=(event,)))
    assert [(one.kind, one.view and one.view.key) for one in batch.reports[0].events] == [(EventKind.GPU_LOST, device)]


def test_event_of_an_unknown_kind_of_device_is_not_sent() -> None:
    event = EventReport(at=held_snapshot().measured_at, kind=EventKind.GPU_LOST, device="other/1")
    (batch,) = batches_of(msgspec.structs.replace(held_snapshot(), events=(event,)))
    assert batch.reports[0].events == ()


def test_guest_is_a_machine_of_its_own() -> None:
    (device,) = example_guest().devices
    at = held_snapshot().measured_at
    device = msgspec.structs.replace(
        device,
        readings={"gpu_power_watts": Reading(value=5.0, reader="nvidia_smi", measured_at=at)},
        sources=(Source(reader="nvidia_smi", lane="fast", provenance=Provenance.SLICE_GUEST, measured_at=at),),
    )
    inside = msgspec.structs.replace(example_guest(), devices=(device,))
    snapshot = msgspec.structs.replace(held_snapshot(), guests=(inside,))
    (batch,) = batches_of(snapshot)
    node, guest = batch.reports
    assert node.machine == snapshot.node
    assert (guest.machine.system_uuid, guest.machine.hypervisor) == (inside.vm_uuid, snapshot.node.name)
    (power,) = (one for one in guest.samples if one.view is not None)
    assert (power.view, power.values) == (device.view, {"gpu_power_watts": 5.0})
    assert power.provenance is Provenance.SLICE_GUEST
    assert any(one.view is None and "guest_expected_gpus" in one.values for one in guest.samples)


def test_same_recording_gives_the_same_bytes() -> None:
    snapshots = [held_snapshot(), changed(held_snapshot(), gpu_power_watts=Reading(value=1.0))]
    one, other = RecordedBatches("c", RECORDING), RecordedBatches("c", RECORDING)
    assert [one.batch(snapshot, AT) for snapshot in snapshots] == [other.batch(snapshot, AT) for snapshot in snapshots]
