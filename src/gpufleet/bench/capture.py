"""Capture: the probe and the workloads of one machine, as a document.

A capture needs two ports of the machine's channel, `Files` and `Exec`. It never fails because of the machine: what
cannot be measured is absent with its reason.
"""

import datetime as dt

import msgspec

from gpufleet import __version__
from gpufleet.bench.document import BENCHMARK_SCHEMA, BenchmarkDocument, CapturedMachine
from gpufleet.bench.facts import FactList
from gpufleet.bench.measurements import MeasurementList
from gpufleet.bench.probe import probe_commands, probe_machine
from gpufleet.bench.runner import CommandRunner
from gpufleet.bench.workloads import Progress, WorkloadRunner
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance
from gpufleet.model.text import bounded
from gpufleet.ports.channel import Exec, Files
from gpufleet.ports.clock import Clock


class CaptureTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Machine to capture.

    Attributes:
        files: its files.
        commands: runs the fixed commands of `bench.runner.PERMITTED` there.
        source: side on which the commands run.
        channel: name of the channel.
    """

    files: Files
    commands: Exec
    source: Provenance = Provenance.HOST_LOCAL_PROBE
    channel: str = "local"


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a capture.

    Attributes:
        name: of the capture; empty for the machine's name.
        labels: factors.
        repeats: number of repeats, at least 1.
        fio_path: file or block device that fio reads, or None.
        ib_peer: host that runs the servers of perftest, or None.
    """

    name: str = ""
    labels: dict[str, str] = {}
    repeats: int = 5
    fio_path: str | None = None
    ib_peer: str | None = None


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
    runner = CommandRunner(target.commands, clock)
    workloads = WorkloadRunner(runner, measurements, request.repeats, progress)
    progress("probe of the machine")
    machine = await probe_machine(target.files, clock, facts)
    progress("probe of boot, driver and container runtimes")
    failure = await probe_commands(runner, request.repeats, facts, measurements)
    await workloads.measure_disk(request.fio_path)
    await workloads.measure_rdma(request.ib_peer)
    await workloads.measure_copies(failure)
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
        commands=tuple(runner.records),
        outputs=runner.outputs,
    )


def _captured_machine(machine: Machine | None, target: CaptureTarget) -> CapturedMachine:
    if machine is None:
        return CapturedMachine(name="unknown", source=target.source, channel=target.channel)
    return CapturedMachine(
        name=bounded(machine.name, 128) or "unknown",
        machine_id=machine.machine_id,
        system_uuid=machine.system_uuid,
        boot_id=machine.boot_id,
        source=target.source,
        channel=target.channel,
    )


def _now(clock: Clock) -> dt.datetime:
    return dt.datetime.fromtimestamp(clock.now_ns() / 1e9, dt.UTC)
