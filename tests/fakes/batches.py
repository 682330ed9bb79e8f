"""Batches and samples with default contents."""

from gpufleet.codecs.batch import encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample, Value
from gpufleet.model.status import Heartbeat, ReaderState, ReaderStatus
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport

EPOCH = "0123456789abcdef" * 2
NODE = Machine(name="node-a", machine_id="a" * 32, system_uuid="11111111-0000-0000-0000-000000000001", boot_id="boot-1")


def gpu_view(number: int, *, side: Side = Side.HOST) -> View:
    return View(kind=ViewKind.GPU, side=side, uuid=f"GPU-{number}", pci_address=f"0000:{number:02x}:00.0", index=number)


def gpu_sample(view: View, at: int, **values: Value | Absent) -> Sample:
    given = values or {"gpu_power_watts": 100.0, "gpu_temperature_celsius": Absent(Reason.TIMEOUT, "nvmlX")}
    return Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values=dict(given))


def host_sample(at: int, load: float = 0.5) -> Sample:
    values: dict[str, Value | Absent] = {"host_load_1m": load, "host_memory_total_bytes": 2**40}
    return Sample(view=None, reader="host", lane=Lane.FAST, measured_at=at, values=values)


def make_batch(
    seq: int,
    at: int,
    *,
    cluster: str = "local",
    sender: str = "node-a",
    epoch: str = EPOCH,
    machine: Machine = NODE,
    gpus: int = 2,
    samples: tuple[Sample, ...] | None = None,
    last_error: str = "",
) -> Batch:
    if samples is None:
        samples = (host_sample(at), *(gpu_sample(gpu_view(n), at) for n in range(gpus)))
    status = ReaderStatus(
        reader="nvml", lane=Lane.FAST, state=ReaderState.OK, interval_seconds=10, last_attempt=at, last_error=last_error
    )
    return Batch(
        cluster=cluster,
        sender=sender,
        epoch=epoch,
        seq=seq,
        sent_at=at,
        heartbeat=Heartbeat(interval_seconds=30, version="0.1.0", started_at=at),
        reports=(MachineReport(machine=machine, samples=samples, readers=(status,)),),
    )


def body(seq: int, at: int, **more: object) -> bytes:
    return encode(make_batch(seq, at, **more))  # type: ignore[arg-type]  # passed through
