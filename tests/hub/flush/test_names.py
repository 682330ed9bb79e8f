"""Rows of a host name from when its present bearer had another one."""

from functools import partial

import msgspec

from gpufleet.codecs.batch import decode, encode, to_rows
from gpufleet.dialects.sample_builder import SERIES_ENDED
from gpufleet.hub.flush.names import ended_machines, without_other_names
from gpufleet.model.absence import Absent, Reason
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


def test_end_of_series_is_no_report_of_a_machine() -> None:
    lost = Absent(Reason.GPU_LOST)
    values: list[float | Absent] = [1.0, 2.0, SERIES_ENDED]
    rows = {
        "ended": [gpu_sample(GPU, T0, gpu_power_watts=SERIES_ENDED)],
        "renamed": [gpu_sample(GPU, T0 + at, gpu_power_watts=value) for at, value in enumerate(values)],
        "lost": [gpu_sample(GPU, T0, gpu_power_watts=SERIES_ENDED, gpu_temperature_celsius=lost)],
    }
    reports = tuple(MachineReport(machine=Machine(name=name), samples=tuple(own)) for name, own in rows.items())
    batch = decode(encode(Batch(cluster="c", sender="w", epoch="0" * 32, seq=1, sent_at=T0, reports=reports)))
    assert ended_machines(batch) == {0}
