"""Strategies and examples of batches."""

from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine, MachineKind, PciFunction
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.status import Heartbeat, ReaderState, ReaderStatus
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport

NOW = 1_790_000_000_000_000_000

GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-0001", pci_address="0000:1b:00.0", index=0)

EXAMPLE = Batch(
    cluster="north",
    sender="node-1",
    epoch="00112233445566778899aabbccddeeff",
    seq=7,
    sent_at=NOW,
    heartbeat=Heartbeat(interval_seconds=30, version="0.1.0", started_at=NOW - 5, queue_records=3, dropped_total=1),
    reports=(
        MachineReport(
            machine=Machine(name="node-1", machine_id="0" * 32, boot_id="b"),
            samples=(
                Sample(
                    view=GPU,
                    reader="nvml",
                    lane=Lane.FAST,
                    measured_at=NOW - 3,
                    values={
                        "gpu_utilization_ratio": 0.5,
                        "gpu_memory_used_bytes": 2**64 - 1,
                        "gpu_memory_temperature_celsius": Absent(Reason.NOT_SUPPORTED),
                        "gpu_recovery_action": "none",
                    },
                    dims=(
                        DimValue("gpu_fan_speed_ratio", ("0",), 0.25),
                        DimValue("gpu_fan_speed_ratio", ("1",), Absent(Reason.TIMEOUT, "nvmlDeviceGetFanSpeed_v2")),
                    ),
                    driver_session=99,
                ),
                Sample(
                    view=None,
                    reader="host",
                    lane=Lane.SLOW,
                    measured_at=NOW - 2,
                    values={"host_load_1m": 0, "host_hostname": "nœud"},
                ),
            ),
            events=(Event(view=GPU, kind="xid", code=79, at=NOW - 4, attributes={"pid": "12"}),),
            readers=(
                ReaderStatus(
                    reader="nvml",
                    lane=Lane.FAST,
                    state=ReaderState.PARTIAL,
                    interval_seconds=10,
                    last_attempt=NOW - 3,
                    last_success=NOW - 3,
                    last_error="GPU 5: timeout",
                ),
            ),
            holdings=(
                Holding(
                    view=GPU.key,
                    holder=Holder(kind=HolderKind.POD, id="uid-1", name="train", namespace="ml"),
                    since=NOW - 9,
                    methods=("kubelet",),
                    verdict=HoldingVerdict.AGREED,
                ),
            ),
            inventory=(PciFunction(address="0000:1b:00.0", vendor=0x10DE, device=0x2335, class_code=0x030200),),
        ),
        MachineReport(
            machine=Machine(name="guest-1", kind=MachineKind.GUEST, hypervisor="node-1"),
            inventory=(),
        ),
    ),
)

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
instants = st.integers(1, 2**63 - 1)
views = st.builds(
    View,
    kind=st.sampled_from(ViewKind),
    side=st.sampled_from(Side),
    uuid=names,
    pci_address=st.none() | names,
    parent=st.none() | names,
    index=st.none() | st.integers(0, 64),
)
absents = st.builds(Absent, reason=st.sampled_from(Reason), detail=st.text(max_size=20))
values = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=30) | absents
samples = st.builds(
    Sample,
    view=st.none() | views,
    reader=st.sampled_from(["nvml", "host", "x"]),
    lane=st.sampled_from(Lane),
    measured_at=instants,
    values=st.dictionaries(st.sampled_from(["a", "b", "gpu_power_watts"]), values),
    dims=st.lists(
        st.builds(
            DimValue, metric=st.sampled_from(["d", "e"]), labels=st.lists(names, max_size=3).map(tuple), value=values
        ),
        max_size=4,
    ).map(tuple),
    provenance=st.sampled_from(Provenance),
    driver_session=st.integers(0, 2**64 - 1),
)


def identity(sample: Sample) -> tuple[object, ...]:
    return (sample.view, sample.reader, sample.lane, sample.measured_at, sample.provenance, sample.driver_session)


reports = st.builds(
    MachineReport,
    machine=st.builds(Machine, name=names, machine_id=st.none() | names),
    samples=st.lists(samples, max_size=5, unique_by=identity).map(tuple),
    inventory=st.none() | st.just(()),
)
batches = st.builds(
    Batch,
    cluster=names,
    sender=names,
    epoch=st.binary(min_size=16, max_size=16).map(bytes.hex),
    seq=st.integers(1, 2**63 - 1),
    sent_at=instants,
    reports=st.lists(reports, max_size=3).map(tuple),
)


def in_order(batch: Batch) -> list[object]:
    """Return the batch with what has no order on the wire sorted."""
    ordered: list[object] = [batch.cluster, batch.sender, batch.epoch, batch.seq, batch.sent_at, batch.heartbeat]
    for report in batch.reports:
        ordered.append((report.machine, report.events, report.readers, report.holdings, report.inventory))
        for sample in sorted(report.samples, key=lambda sample: repr(identity(sample))):
            ordered.append((identity(sample), sample.values, sorted(map(repr, sample.dims))))
    return ordered
