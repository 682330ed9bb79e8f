"""Checks of each machine of a cluster, from its reports. Pure."""

import re
from collections.abc import Callable

from gpufleet.fleet.contract.check import (
    CheckOutcome,
    ContractLimits,
    MachineCheck,
    met,
    not_applicable,
    not_met,
    unknown,
)
from gpufleet.fleet.contract.facts import ClusterFacts, GpuSource, MachineFacts
from gpufleet.model.liveness import State
from gpufleet.model.machine import MachineKind
from gpufleet.model.text import counted

_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})")

STRONG_EVIDENCE = ("system_uuid", "k8s_node_uid", "instance_id", "machine_id")
"""Evidence of a machine's identity that is more than its name."""

MachineRun = Callable[[MachineFacts, ClusterFacts, ContractLimits], CheckOutcome]


def _of_gpus(run: MachineRun) -> MachineRun:
    """Return a check that applies only to machines with GPUs."""

    def checked(machine: MachineFacts, facts: ClusterFacts, limits: ContractLimits) -> CheckOutcome:
        if machine.gpus == 0:
            return not_applicable("the machine has no GPU")
        return run(machine, facts, limits)

    return checked


def _of_reports(run: MachineRun) -> MachineRun:
    """Return a check of a machine's reports; it is unknown without a current report."""

    def checked(machine: MachineFacts, facts: ClusterFacts, limits: ContractLimits) -> CheckOutcome:
        if machine.is_current is False:
            return unknown(f"its present state, because the machine is {machine.state}")
        return run(machine, facts, limits)

    return checked


def _agent_reads(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if machine.source is None:
        return unknown("the origin of its readings")
    if machine.source is GpuSource.AGENT:
        return met("an agent reads its GPUs")
    if machine.source is GpuSource.NONE and machine.state not in (State.NEVER_SEEN, State.LIVE, State.LATE):
        return unknown(f"the origin of its readings, because the machine is {machine.state}")
    found = {
        GpuSource.EXPORTER: "its GPUs are read from an exporter",
        GpuSource.PULL: "its GPUs are read from imported or scraped pages",
        GpuSource.NONE: "nothing reads its GPUs",
    }
    return not_met(found[machine.source])


def _version_supported(machine: MachineFacts, facts: ClusterFacts, limits: ContractLimits) -> CheckOutcome:
    own, hub = _release(machine.version or ""), _release(facts.hub_version)
    if own is None or hub is None:
        return unknown("the version of its sender")
    found = f"version {machine.version}, hub {facts.hub_version}"
    if own > hub:
        return not_met(f"{found}: newer than the hub")
    is_supported = own[0] == hub[0] and hub[1] - own[1] <= limits["releases"]
    return met(found) if is_supported else not_met(found)


def _release(version: str) -> tuple[int, int] | None:
    found = _RELEASE.match(version)
    return None if found is None else (int(found[1]), int(found[2]))


def _driver_works(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    """Judge the reported state of the driver. DCGM reports none: a current value of a GPU then shows that it works."""
    if machine.driver_works is not None:
        return met("the driver works") if machine.driver_works else not_met("the driver does not work")
    if machine.source is GpuSource.AGENT and machine.reporting_gpus:
        return met(f"{counted(machine.reporting_gpus, 'GPU')} with current values")
    return unknown("the state of the driver")


def _flag(name: str, fact: str, yes: str, no: str) -> MachineRun:
    """Return the check that a yes-or-no fact is true; `fact` describes it if it is missing."""

    def run(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
        value: bool | None = getattr(machine, name)
        return unknown(fact) if value is None else met(yes) if value else not_met(no)

    return run


def _most(name: str, limit: str, what: str, unit: str) -> MachineRun:
    """Return the check that the absolute value of a number is at most a limit of the item."""

    def run(machine: MachineFacts, _facts: ClusterFacts, limits: ContractLimits) -> CheckOutcome:
        value: float | None = getattr(machine, name)
        if value is None:
            return unknown(what)
        found = f"{what}: {value:g} {unit}".rstrip()
        return met(found) if abs(value) <= limits[limit] else not_met(found)

    return run


def _without_values(what: str) -> CheckOutcome:
    """Return the outcome of a machine without reporting GPUs."""
    return unknown(f"the number of GPUs {what}, because no GPU of the machine reports")


def _all_gpus(name: str, total: str, what: str) -> MachineRun:
    """Return the check that a number of GPUs reaches the total, unknown for 0 of 0; missing ones are not visible."""

    def run(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
        count: int | None = getattr(machine, name)
        expected: int | None = getattr(machine, total)
        if count is None or expected is None:
            return unknown(f"the number of GPUs {what}")
        if count == expected == 0:
            return _without_values(what)
        found = f"{count} of {expected} GPUs {what}"
        return met(found) if count >= expected else not_met(found, expected - count)

    return run


def _no_gpus(name: str, what: str) -> MachineRun:
    """Return the check that a number of GPUs is 0; unknown if none reports."""

    def run(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
        count: int | None = getattr(machine, name)
        if count is None:
            return unknown(f"the number of GPUs {what}")
        if count == machine.reporting_gpus == 0:
            return _without_values(what)
        found = f"{counted(count, 'GPU')} {what}"
        return met(found) if count == 0 else not_met(found, count)

    return run


def _holders_known(machine: MachineFacts, facts: ClusterFacts, limits: ContractLimits) -> CheckOutcome:
    if machine.kind is MachineKind.GUEST:
        return not_applicable("the host of a guest reports its holder")
    return _no_gpus("unattributed_gpus", "with unknown holders")(machine, facts, limits)


def _machine_current(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if machine.state is None:
        return unknown("the liveness of the machine")
    return met(machine.state) if machine.is_current else not_met(machine.state)


def _machine_identified(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if machine.identity_conflict:
        return not_met("its evidence contradicts another machine's")
    if machine.state is State.NEVER_SEEN:
        return unknown("a report of the machine")
    strong = [name for name in STRONG_EVIDENCE if name in machine.evidence]
    if not strong:
        return not_met("only its name is known")
    return met(", ".join(strong)) if machine.identity_conflict is not None else unknown("conflicts of its identity")


def _placement_known(machine: MachineFacts, facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    parts = {"region": machine.region, "zone": machine.zone, "instance type": machine.instance_type}
    missing = " and no ".join([name for name, value in parts.items() if not value])
    if not missing:
        return met(", ".join(f"{name}: {value}" for name, value in parts.items()))
    if machine.kind is MachineKind.NODE and facts.is_kubernetes:
        if machine.has_pool is None:
            return unknown(f"the labels of its Kubernetes node; without them no {missing}")
    elif machine.state in (None, State.NEVER_SEEN):
        return unknown(f"a report of the machine; without it no {missing}")
    return not_met(f"no {missing}")


def _pool_labelled(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if machine.kind is MachineKind.GUEST:
        return not_applicable("a guest has no node pool")
    if machine.has_pool is None:
        return unknown("the Kubernetes node of the machine")
    return met("a label names its pool") if machine.has_pool else not_met("no label names its pool")


def _pushes(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if machine.is_scraped is None:
        return unknown("the mechanism of its reports")
    return not_met("the hub connects to it") if machine.is_scraped else met("its sender posts to the hub")


def _batches_delivered(machine: MachineFacts, _facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if machine.missing_batches is None or machine.dropped_batches is None:
        return unknown("the missing and dropped batches of its sender")
    found = f"{machine.missing_batches} batches missing, {machine.dropped_batches} dropped in the last hour"
    return not_met(found) if machine.missing_batches or machine.dropped_batches else met(found)


def _retired_in_time(machine: MachineFacts, _facts: ClusterFacts, limits: ContractLimits) -> CheckOutcome:
    if machine.state is None:
        return unknown("the liveness of the machine")
    if machine.state is not State.LOST:
        return met(machine.state)
    if machine.unseen_days is None:
        return unknown("the time of its last report")
    found = f"lost for {machine.unseen_days} days and not retired"
    return met(found) if machine.unseen_days <= limits["days"] else not_met(found)


def _check(name: str, help: str, run: MachineRun, **limits: str) -> MachineCheck:  # noqa: A002 - the record's name
    def checked(machine: MachineFacts, facts: ClusterFacts, own: ContractLimits) -> CheckOutcome:
        return run(machine, facts, own) if machine.is_read else unknown("the machine, which was not read yet")

    return MachineCheck(name=name, help=help, run=checked, limits=limits)


def _reported(name: str, help: str, run: MachineRun, **limits: str) -> MachineCheck:  # noqa: A002
    """Return a check of machines with GPUs that needs a current report."""
    return _check(name, help, _of_gpus(_of_reports(run)), **limits)


# fmt: off
MACHINE_CHECKS = (
    _check("agent_reads", "An agent reads the GPUs of the machine.", _of_gpus(_agent_reads)),
    _reported("version_supported",
              "The version of the sender is that of the hub, or at most `releases` minor releases older.",
              _version_supported, releases="minor releases"),
    _reported("driver_works", "The state of the driver is `ok`, or an agent reads current values of its GPUs.",
              _driver_works),
    _reported("xids_watched", "XIDs are read from the driver or the kernel log.",
              _flag("xids_watched", "whether XIDs are read", "XIDs are read", "XIDs are not read")),
    _reported("holders_known", "No GPU of the node has unknown holders.", _holders_known),
    _check("machine_current", "The state of the machine is live or late.", _of_gpus(_machine_current)),
    _check("machine_identified", "The machine reports more than its name, and no other machine contradicts it.",
           _of_gpus(_machine_identified)),
    _reported("gpus_identified", "Every reporting GPU is known by its UUID.",
              _all_gpus("identified_gpus", "reporting_gpus", "known by UUID")),
    _check("placement_known", "Region, zone and instance type of the machine are known.", _of_gpus(_placement_known)),
    _check("pool_labelled", "A label of the node names its pool.", _of_gpus(_pool_labelled)),
    _check("sender_pushes", "The sender posts to the hub; the hub does not connect to it.", _of_gpus(_pushes)),
    _check("gpus_report", "Every expected GPU of the machine has a current value.",
           _of_gpus(_all_gpus("reporting_gpus", "expected_gpus", "reporting"))),
    _reported("usage_reported", "Every reporting GPU has current utilisation and memory, or its driver has none.",
              _all_gpus("usage_gpus", "reporting_gpus", "with utilisation and memory")),
    _reported("condition_reported", "Every reporting GPU has current power and temperature, or its driver has none.",
              _all_gpus("condition_gpus", "reporting_gpus", "with power and temperature")),
    _reported("values_valid", "No GPU has a reading that is absent with `invalid_value`.",
              _no_gpus("invalid_gpus", "with invalid values")),
    _reported("heartbeat_interval", "The sender declares a heartbeat at least every `seconds`.",
              _most("heartbeat_seconds", "seconds", "heartbeat interval", "s"), seconds="s"),
    _reported("sample_interval", "The GPUs are read at least every `seconds`.",
              _most("interval_seconds", "seconds", "interval of readings", "s"), seconds="s"),
    _check("sample_age", "The newest GPU value is at most `seconds` old.",
           _of_gpus(_most("value_age_seconds", "seconds", "age of the newest value", "s")), seconds="s"),
    _reported("clock_offset", "The clock of the sender is at most `seconds` off.",
              _most("clock_ahead_seconds", "seconds", "clock ahead", "s"), seconds="s"),
    _reported("batches_delivered", "No batch of the sender is missing, and none was dropped in the last hour.",
              _batches_delivered),
    _check("lost_retired", "The machine is retired at most `days` after its last report.", _retired_in_time,
           days="days"),
)
# fmt: on
