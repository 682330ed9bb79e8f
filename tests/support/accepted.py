"""Accepted batches built from samples without the codec: one block per sample."""

from collections.abc import Sequence

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE_VERSION
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Sample
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import WIRE_VERSION, DimBlock, MachinePart, SampleBlock, WireAbsence, WireBatch

EPOCH = "0123456789abcdef" * 2


def accept(
    cluster: str,
    machine: str,
    samples: Sequence[Sample] = (),
    *,
    part: MachinePart | None = None,
    received_at: int = 1_700_086_400_000_000_000,
    sent_at: int = 1_700_000_000_000_000_000,
    reported_at: int | None = None,
    seq: int = 1,
) -> AcceptedBatch:
    """Return the samples of one machine as an accepted batch. By default it was reported when it was sent."""
    batch = WireBatch(
        version=WIRE_VERSION,
        catalogue=CATALOGUE_VERSION,
        cluster=cluster,
        sender="sender",
        epoch=EPOCH,
        seq=seq,
        sent_at=sent_at,
        machines=[Machine(name="node")],
        parts=[part] if part else [],
    )
    for sample in samples:
        _add(batch, sample)
    reported_at = sent_at if reported_at is None else reported_at
    return AcceptedBatch(received_at=received_at, reported_at=reported_at, machine_ids=(machine,), batch=batch)


def _add(batch: WireBatch, sample: Sample) -> None:
    view = -1
    if sample.view is not None:
        view = batch.views.index(sample.view) if sample.view in batch.views else len(batch.views)
        if view == len(batch.views):
            batch.views.append(sample.view)
    absent = {name: value for name, value in sample.values.items() if isinstance(value, Absent)}
    names = list(sample.values)
    batch.samples.append(
        SampleBlock(
            reader=sample.reader,
            lane=sample.lane.value,
            provenance=sample.provenance.value,
            metrics=names,
            machine=[0],
            view=[view],
            measured_at=[sample.measured_at],
            driver_session=[sample.driver_session],
            absence=[_intern(batch, absent)],
            columns=[[None if name in absent else _present(sample.values[name])] for name in names],
        )
    )
    for value in sample.dims:
        batch.dims.append(_dim_block(batch, sample, value, view))


def _dim_block(batch: WireBatch, sample: Sample, value: DimValue, view: int) -> DimBlock:
    absent = {value.metric: value.value} if isinstance(value.value, Absent) else {}
    return DimBlock(
        metric=value.metric,
        reader=sample.reader,
        lane=sample.lane.value,
        provenance=sample.provenance.value,
        machine=[0],
        view=[view],
        measured_at=[sample.measured_at],
        driver_session=[sample.driver_session],
        labels=[[label] for label in value.labels],
        values=[None if absent else _present(value.value)],
        absence=[_intern(batch, absent)],
    )


def _present(value: float | str | Absent) -> float | str:
    assert not isinstance(value, Absent)
    return value


def _intern(batch: WireBatch, absent: dict[str, Absent]) -> int:
    if not absent:
        return -1
    found = [WireAbsence(name, why.reason, why.detail) for name, why in sorted(absent.items())]
    if found not in batch.absences:
        batch.absences.append(found)
    return batch.absences.index(found)
