"""Capture: the probe and the workloads of one machine, as a document.

A capture needs two ports of the machine's channel, `Files` and `Exec`. It never fails because of the machine: what
cannot be measured is absent with its reason.
"""

import datetime as dt

import msgspec

from gpufleet import __version__
from gpufleet.bench.document import BenchmarkDocument, CapturedMachine
from gpufleet.bench.workloads import Progress, WorkloadRunner
from gpufleet.model.api.benchmarks import BENCHMARK_SCHEMA
from gpufleet.model.commands import CommandGroup
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance
from gpufleet.model.text import bounded
from gpufleet.ports.channel import Exec, Files
from gpufleet.ports.clock import Clock
from gpufleet.probe.facts import FactList
from gpufleet.probe.machine import probe_commands, probe_machine
from gpufleet.probe.measurements import MeasurementKind, MeasurementList
from gpufleet.probe.records import Better, MeasuredUnit
from gpufleet.probe.runner import CommandRunner

CAPTURED = frozenset(CommandGroup)
"""Groups of commands of a capture."""


CHANNEL_OPEN = MeasurementKind(
    name="channel_open",
    help="time to open the channel, such as an SSH login",
    unit=MeasuredUnit.SECONDS,
    better=Better.LOWER,
    tool="channel",
)


class GuestIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a virtual machine by the agent's configuration: its name, UUID and allocation (empty if unknown)."""

    name: str
    uid: str
    allocation: str = ""


class CaptureTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Machine to capture.

    Attributes:
        files: its files.
        commands: runs the fixed commands of `model.commands` there.
        source: side on which the commands run.
        channel: name of the channel.
        open_seconds: time to open the channel; None for a channel that is always open.
        guest: of a virtual machine, its identity by the agent's configuration; None for this machine.
    """

    files: Files
    commands: Exec
    source: Provenance = Provenance.HOST_LOCAL_PROBE
    channel: str = "local"
    open_seconds: float | None = None
    guest: "GuestIdentity | None" = None


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a capture.

    Attributes:
        name: of the capture; empty for the machine's name.
        labels: factors.
        repeats: number of repeats, at least 1.
        fio_path: file or block device that fio reads, or None.
        ib_peer: host that runs the servers of perftest, or None.
        ib_server: runs commands on the peer, to start the servers there; None if they run already.
    """

    name: str = ""
    labels: dict[str, str] = {}
    repeats: int = 5
    fio_path: str | None = None
    ib_peer: str | None = None
    ib_server: Exec | None = None


async def capture(
    target: CaptureTarget, request: CaptureRequest, clock: Clock, progress: Progress
) -> BenchmarkDocument:
    """Run the probe and the requested workloads.

    Args:
        target: machine.
        request: content.
        clock: of the capturing process.
        progress: receives a line about each step.

    Raises:
        WireError: if the path of fio or the peer is malformed.
    """
    started_at = _now(clock)
    facts, measurements = FactList(), MeasurementList()
    runner = CommandRunner(target.commands, clock, CAPTURED)
    server = None if request.ib_server is None else CommandRunner(request.ib_server, clock, CAPTURED)
    workloads = WorkloadRunner(runner, measurements, request.repeats, progress)
    progress("probe of the machine")
    if target.open_seconds is not None:
        measurements.add(CHANNEL_OPEN, target.open_seconds)
    machine = await probe_machine(target.files, clock, facts, measurements)
    progress("probe of boot, driver and container runtimes")
    failure = await probe_commands(runner, request.repeats, facts, measurements)
    await workloads.measure_disk(request.fio_path)
    await workloads.measure_rdma(request.ib_peer, server)
    await workloads.measure_copies(failure)
    runners = (runner,) if server is None else (runner, server)
    where = _captured_machine(machine, target)
    return BenchmarkDocument(
        schema=BENCHMARK_SCHEMA,
        name=request.name or bounded(where.name, 128),
        version=__version__,
        started_at=started_at,
        ended_at=_now(clock),
        machine=where,
        labels=request.labels,
        repeats=request.repeats,
        facts=tuple(facts.facts),
        measurements=measurements.measurements(),
        commands=tuple(record for one in runners for record in one.records),
        outputs={digest: output for one in runners for digest, output in one.outputs.items()},
    )


def _captured_machine(machine: Machine | None, target: CaptureTarget) -> CapturedMachine:
    where = CapturedMachine(name="unknown", source=target.source, channel=target.channel)
    if machine is not None:
        where = msgspec.structs.replace(
            where,
            name=bounded(machine.name, 128) or "unknown",
            machine_id=machine.machine_id,
            system_uuid=machine.system_uuid,
            boot_id=machine.boot_id,
        )
    if (guest := target.guest) is not None:  # the guest's own name and UUID are claims
        where = msgspec.structs.replace(
            where,
            name=bounded(guest.name, 128),
            system_uuid=guest.uid,
            allocation=bounded(guest.allocation, 256) or None,
        )
    return where


def _now(clock: Clock) -> dt.datetime:
    return dt.datetime.fromtimestamp(clock.now_ns() / 1e9, dt.UTC)
