"""Snapshot with a value of every metric of the catalogue, growing between snapshots."""

import datetime as dt

from gpufleet import __version__
from gpufleet.model.absence import Reason
from gpufleet.model.aggregate import aggregate
from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION, Metric, MetricKind, Subject
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimReading, Provenance, Reading, Value
from gpufleet.model.snapshot import SNAPSHOT_SCHEMA, Device, Host, ReaderReport, Snapshot, Source
from gpufleet.model.status import ReaderState
from gpufleet.model.view import Side, ViewKind

DIMS = {"reason": "sw_power_cap", "xid": "79", "link": "0", "fan": "0"}
"""Label values by dimension; other dimensions have their name as value."""


def snapshot_of_everything(at: dt.datetime, growth: int) -> Snapshot:
    """Return the snapshot; its counters have grown by `growth`."""
    source = Source(reader="nvml", lane="fast", provenance=Provenance.HOST_LOCAL_PROBE, measured_at=at)

    def device(kind: ViewKind, subject: Subject, uuid: str, parent: str | None) -> Device:
        return Device(
            key=f"{kind}/{uuid}",
            kind=kind,
            side=Side.VGPU_HOST if kind is ViewKind.VGPU else Side.HOST,
            uuid=uuid,
            pci_address="0000:1b:00.0",
            parent=parent,
            index=0,
            name="NVIDIA H200",
            readings=_readings(subject, at, growth),
            dimensions=_dimensions(subject, at, growth),
            sources=(source,),
        )

    gpu = device(ViewKind.GPU, Subject.GPU, "GPU-1", None)
    devices = (
        gpu,
        device(ViewKind.MIG, Subject.MIG, "MIG-1", gpu.key),
        device(ViewKind.VGPU, Subject.VGPU, "vgpu-1", gpu.key),
    )
    failing = ReaderReport(reader="dcgm", lane="fast", state=ReaderState.FAILED, interval_seconds=10, last_attempt=at)
    return Snapshot(
        schema=SNAPSHOT_SCHEMA,
        catalogue=CATALOGUE_VERSION,
        version=__version__,
        node=Machine(name="node-1"),
        measured_at=at,
        devices=(*devices, _broken(at)),
        host=Host(
            readings=_readings(Subject.MACHINE, at, growth),
            dimensions=_dimensions(Subject.MACHINE, at, growth),
            sources=(source,),
        ),
        guests=(),
        readers=(failing,),
        capabilities={},
        aggregate=aggregate([gpu.readings]),
    )


def _broken(at: dt.datetime) -> Device:
    """Return a GPU without any value, so that absences are shown."""
    reading = Reading(absent=Reason.TIMEOUT, reader="nvml", measured_at=at)
    return Device(
        key="gpu/GPU-2", kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2", readings={"gpu_power_watts": reading}
    )


def _readings(subject: Subject, at: dt.datetime, growth: int) -> dict[str, Reading]:
    return {
        name: Reading(value=_value(metric, growth), reader="nvml", measured_at=at)
        for name, metric in CATALOGUE.items()
        if not metric.dims and subject in metric.subjects
    }


def _dimensions(subject: Subject, at: dt.datetime, growth: int) -> tuple[DimReading, ...]:
    return tuple(
        DimReading(
            metric=name,
            labels={dim: DIMS.get(dim, dim) for dim in metric.dims},
            value=_value(metric, growth),
            reader="nvml",
            measured_at=at,
        )
        for name, metric in CATALOGUE.items()
        if metric.dims and subject in metric.subjects
    )


def _value(metric: Metric, growth: int) -> Value:
    if metric.kind is MetricKind.INFO:
        return "1"
    if metric.kind is MetricKind.STATE:
        return metric.states[0]
    if metric.kind is MetricKind.COUNTER:
        return 1000 + growth
    return 1 if metric.high is None else min(1, int(metric.high))
