"""Rows of a host name from when its present bearer had another one."""

from functools import partial

import msgspec

from gpufleet.codecs.batch import decode, encode, to_rows
from gpufleet.hub.flush.names import without_other_names
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.batches import gpu_sample, gpu_view

T0 = 1_790_000_000_000_000_000
GPU = gpu_view(1)
HOLDING = partial(
    Holding,
    view=GPU.key,
    holder=Holder(kind=HolderKind.POD, id="p"),
    methods=("exporter_labels",),
    verdict=HoldingVerdict.OBSERVED_ONLY,
)


def report(name: str, *instants: int) -> MachineReport:
    dims = (DimValue("gpu_nvlink_transmit_bytes_total", ("0",), 7),)
    plain = [gpu_sample(GPU, at, gpu_power_watts=float(at - T0)) for at in instants]
    samples = tuple(msgspec.structs.replace(one, dims=dims) for one in plain)
    events = tuple(Event(view=GPU, kind="gpu_lost", at=at) for at in instants)
    holdings = tuple(HOLDING(since=at) for at in instants)
    return MachineReport(machine=Machine(name=name), samples=samples, events=events, holdings=holdings)


def test_rows_events_and_holdings_of_other_bearers_are_removed() -> None:
    reports = (report("a", T0, T0 + 1, T0 + 2), report("b", T0, T0 + 2))
    sender = "0" * 32
    batch = decode(encode(Batch(cluster="c", sender="w", epoch=sender, seq=1, sent_at=T0, reports=reports)))
    kept, removed = without_other_names(batch, {0: [(0, T0 + 1), (T0 + 2, T0 + 9)]})
    assert removed == 4  # a sample, its value with dimensions, an event and a holding
    assert to_rows(kept).reports == (report("a", T0, T0 + 2), reports[1])
    assert without_other_names(batch, {0: [(T0, T0 + 9)]}) == (batch, 0)
