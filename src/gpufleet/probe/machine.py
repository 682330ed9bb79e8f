"""The performance probe: cheap facts and measurements of a machine, from kernel files and fixed commands."""

import re

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ChannelError, ReaderError
from gpufleet.model.machine import Machine
from gpufleet.ports.channel import Files
from gpufleet.ports.clock import Clock
from gpufleet.probe.clocks import probe_clocks
from gpufleet.probe.facts import FACTS, FactList
from gpufleet.probe.host_files import (
    MACHINE_PLAN,
    add_gpu_facts,
    add_link_fact,
    add_machine_facts,
    gpu_addresses,
    gpu_plan,
)
from gpufleet.probe.measurements import MeasurementList
from gpufleet.probe.nvidia_smi import probe_nvidia_smi
from gpufleet.probe.pci_acs import acs_plan, add_acs_fact, bridge_addresses
from gpufleet.probe.runner import CommandRunner, FixedCommand, failure_of
from gpufleet.probe.systemd import probe_systemd
from gpufleet.readers.host import HostReader
from gpufleet.readers.host.source import FetchedFiles

VERSIONS = {
    "docker_version": ("docker", "--version"),
    "containerd_version": ("containerd", "--version"),
    "runc_version": ("runc", "--version"),
    "nvidia_container_toolkit_version": ("nvidia-ctk", "--version"),
}
"""Fact to the command that prints a version."""

IDENTITY = (
    "host_kernel_release", "host_os_name", "host_cpu_model", "host_virtualization", "host_container",
    "host_system_vendor", "host_product_name", "host_bios_version", "host_root_device", "host_root_disk_model",
    "host_root_disk_serial", "host_root_disk_bytes", "host_nvidia_kernel_driver_version",
)  # fmt: skip
"""Facts of the host reader."""

OTHER_FILE_FACTS = frozenset({
    "nvidia_module_kind", "docker_default_runtime", "docker_nvidia_runtime", "containerd_runtimes",
})  # fmt: skip
"""Facts from files, beside those about the host."""

_VERSION = re.compile(rb"(?<![A-Za-z0-9.])v?([0-9]{1,4}\.[0-9]{1,6}[0-9A-Za-z.+~-]{0,40})")


async def probe_machine(files: Files, clock: Clock, facts: FactList, measurements: MeasurementList) -> Machine | None:
    """Add the facts from files; return the machine's identity, or None without a host name."""
    await probe_clocks(files, clock, facts, measurements)
    machine = await _read_identity(files, clock, facts)
    try:
        source = FetchedFiles(await files.fetch(MACHINE_PLAN))
        add_machine_facts(source, facts)
        addresses = gpu_addresses(source)
        of_gpus = FetchedFiles(await files.fetch(gpu_plan(addresses)))
        add_gpu_facts(of_gpus, addresses, facts)
        add_link_fact(of_gpus, addresses, facts)
        bridges = bridge_addresses(source)
        add_acs_fact(FetchedFiles(await files.fetch(acs_plan(bridges))), bridges, facts)
    except ChannelError as error:
        absent = Absent(Reason.READER_FAILED, str(error))
        for name in FACTS:
            if name.startswith("host_") or name in OTHER_FILE_FACTS:
                facts.add(name, absent)
    return machine


async def probe_commands(
    runner: CommandRunner, repeats: int, facts: FactList, measurements: MeasurementList
) -> Absent | None:
    """Add facts and measurements of fixed commands; return why nvidia-smi does not work, or None."""
    await probe_systemd(runner, measurements)
    failure = await probe_nvidia_smi(runner, repeats, facts, measurements)
    for name, argv in VERSIONS.items():
        facts.add(name, await read_version(runner, name, argv), " ".join(argv))
    return failure


async def read_version(runner: CommandRunner, name: str, argv: tuple[str, ...]) -> str | Absent:
    """Return the version that a command prints."""
    outcome = await runner.run(FixedCommand(name=name, argv=argv))
    if outcome.absent is not None:
        return outcome.absent
    assert outcome.result is not None
    found = _VERSION.search(outcome.result.stdout[:4096]) or _VERSION.search(outcome.result.stderr[:4096])
    if found is not None:
        return found[1].decode("ascii")
    if outcome.result.exit_code != 0:
        return failure_of(argv[0], outcome.result)
    return Absent(Reason.INVALID_VALUE, f"{argv[0]} printed no version")


async def _read_identity(files: Files, clock: Clock, facts: FactList) -> Machine | None:
    try:
        read = await HostReader(files, clock).read(Lane.STATIC)
    except ReaderError as error:
        for name in IDENTITY:
            facts.add(name, Absent(error.absence, str(error)), "host reader")
        return None
    (sample,) = read.samples
    for name in IDENTITY:
        facts.add(name, sample.values[name], "host reader")
    return read.machine
