"""Rows of a host name from before its present bearer had it."""

import msgspec

from gpufleet.codecs.batch import decode, encode, to_rows
from gpufleet.hub.flush.names import without_earlier_rows
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.batches import gpu_sample, gpu_view

T0 = 1_790_000_000_000_000_000
GPU = gpu_view(1)


def report(name: str, *instants: int) -> MachineReport:
    dims = (DimValue("gpu_nvlink_transmit_bytes_total", ("0",), 7),)
    plain = [gpu_sample(GPU, at, gpu_power_watts=float(at - T0)) for at in instants]
    samples = tuple(msgspec.structs.replace(one, dims=dims) for one in plain)
    events = tuple(Event(view=GPU, kind="gpu_lost", at=at) for at in instants)
    return MachineReport(machine=Machine(name=name), samples=samples, events=events)


def test_rows_and_events_of_an_earlier_bearer_are_removed() -> None:
    reports = (report("a", T0, T0 + 1, T0 + 2), report("b", T0, T0 + 2))
    sender = "0" * 32
    batch = decode(encode(Batch(cluster="c", sender="w", epoch=sender, seq=1, sent_at=T0, reports=reports)))
    kept, removed = without_earlier_rows(batch, {0: T0 + 1})
    assert removed == 3  # a sample, its value with dimensions, and an event
    assert to_rows(kept).reports == (report("a", T0 + 1, T0 + 2), reports[1])
    assert without_earlier_rows(batch, {0: T0}) == (batch, 0)
