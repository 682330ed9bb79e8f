"""Machines of a simulated cluster, judged once a minute: the facts and verdicts about them and their GPUs."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpufleet.fleet.facts.earlier import EarlierFindings
from gpufleet.fleet.facts.fleet import FleetTables, fleet_tables
from gpufleet.fleet.facts.history import FactMemory
from gpufleet.fleet.facts.metrics import FACT_METRICS
from gpufleet.fleet.facts.supplied import ClusterInputs, HolderColumns, MachineInputs
from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.judgement import Judgement, judge
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.suppression import Suppression
from gpufleet.fleet.rules.table import RULES
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.finding import Finding, FindingState, RuleScope, Severity
from gpufleet.model.holdings import HolderState
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.stored.readings import EventCount, ViewColumns, labelled, split_labelled
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports
from tests.support.newest import newest_columns

START = 1_800_000_000 * NANOS
STALE_AFTER = 120.0
LANES = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}
CLUSTER = "sim-1"
GPUS = 2

LAST_ERROR = "nvmlInit: driver/library version mismatch"

Values = Mapping[str, Value | Absent]

NO_VALUES: Values = {}

GPU_VALUES: Values = {
    "gpu_driver_events_watched": 1,
    "gpu_nvlinks_active": 18,
    "gpu_nvswitch_links": 18,
    "gpu_channel_repair_pending": 0,
    "gpu_tpc_repair_pending": 0,
    "gpu_unrepairable_memory": 0,
    "gpu_fabric_health_status": "healthy",
    "gpu_fabric_incorrect_configuration": "none",
    labelled("gpu_temperature_margin_threshold_celsius", "slowdown"): -2.0,
    labelled("gpu_fabric_health", "route_unhealthy"): 0,
    labelled("gpu_retired_pages", "single_bit"): 0,
    labelled("gpu_retired_pages", "double_bit"): Absent(Reason.NOT_SUPPORTED),
}
"""Values that an agent reads and the simulated agent does not."""

NODE_VALUES: Values = {
    "nvidia_driver_state": "ok",
    "nvidia_devices": GPUS,
    "host_kernel_log_lost_messages_total": 3,
    "host_boot_timestamp_seconds": START // NANOS - 86400,
    labelled("host_service_state", "nvidia-fabricmanager"): "running",
}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Change of one machine and one of its GPUs.

    Attributes:
        gpu, node: values of the GPU and of the machine itself.
        inputs: inputs that the hub supplies about the machine.
        held, held_seconds, conflict: holder of the GPU, as reported.
        events: kind, code and age in seconds of events of the GPU.
        ages: age of samples of the machine's lanes in seconds.
        dropped: readings of the GPU that are not reported.
        is_gone: whether the GPU is no longer reported.
        is_imported: whether the machine has an exporter only.
        extra: further samples of the machine, given the GPU's newest samples.
        mig_layout: MIG profiles of the GPU.
        reporters: ids of other machines that report the GPU.
        minutes: judgements with the fault.
    """

    gpu: Values = {}
    node: Values = {}
    inputs: Mapping[str, float | None] = {}
    held: float | None = None
    held_seconds: float = 0.0
    conflict: bool = False
    events: Sequence[tuple[str, int, float]] = ()
    ages: Mapping[Lane, float] = {}
    dropped: Sequence[str] = ()
    is_gone: bool = False
    is_imported: bool = False
    extra: Callable[[Sequence[Sample]], Sequence[StoredSample]] | None = None
    mig_layout: str | None = None
    reporters: Sequence[str] = ()
    minutes: int = 1


NO_FAULT = Fault()


class FactWorld:
    """Nodes of a simulated cluster.

    Attributes:
        now: instant of the newest judgement.
        tables: its facts.
    """

    def __init__(self, numbers: Sequence[int], target: int, *, memory: FactMemory | None = None) -> None:
        """Take the numbers of the nodes, and of the node with the faults."""
        self.fleet = Fleet(FleetSpec(nodes=max(numbers), gpus=GPUS))
        self._nodes = [self.fleet.node(1, number) for number in numbers]
        self.machine = self.fleet.node(1, target).name
        self.memory = memory or FactMemory()
        self.now = START
        self.tables: FleetTables | None = None
        self.judgement: Judgement | None = None

    @property
    def gpu(self) -> str:
        """View key of the GPU with the faults."""
        return next(node for node in self._nodes if node.name == self.machine).all_gpus[0].view.key

    @property
    def gpus(self) -> list[str]:
        """View keys of the GPUs of the machine with the faults."""
        return [gpu.view.key for node in self._nodes if node.name == self.machine for gpu in node.all_gpus]

    def restart(self, evidence: Mapping[str, dict[str, str]]) -> None:
        """Drop the history, and take the evidence of open findings of the GPU with the faults, by rule."""
        self.memory = FactMemory()
        self.memory.earlier = EarlierFindings(
            Finding(
                id=rule,
                rule=rule,
                scope=self.key,
                severity=Severity.WARNING,
                state=FindingState.OPEN,
                evidence=values,
                first=1,
                last=1,
                opened_at=1,
            )
            for rule, values in evidence.items()
        )

    @property
    def devices(self) -> FactTable:
        """Facts about the GPUs."""
        assert self.tables is not None
        return self.tables.devices

    @property
    def key(self) -> str:
        """Key of that GPU as a subject."""
        return f"{CLUSTER}/{self.machine}/{self.gpu}"

    def judge(self, fault: Fault = NO_FAULT, seconds: float = 60) -> dict[str, set[str]]:
        """Advance the clock and judge; return rule to the subjects for which it fires, without hidden ones."""
        self.now += int(seconds * NANOS)
        self.tables = fleet_tables(
            [self.inputs(fault)],
            self.memory,
            self.now,
            STALE_AFTER,
            cluster_rows={CLUSTER: 0},
            duplicates=self._duplicates(fault),
        )
        clusters = FactTable(RuleScope.CLUSTER, (CLUSTER,))
        facts = FleetFacts.of(clusters, self.tables.machines, self.tables.devices)
        rules = [rule for rule in RULES if rule.scope in (RuleScope.MACHINE, RuleScope.DEVICE)]
        self.judgement = judge(facts, rules, Thresholds(rules), self.now)
        hidden = Suppression(self.judgement, rules, lambda _: ())
        found: dict[str, set[str]] = {}
        for verdicts in self.judgement.verdicts.values():
            visible = (hidden.causes(verdicts.rule) == 0) & ~hidden.retired_for(verdicts.rule)
            keys = {verdicts.table.keys[row] for row in verdicts.firing.tolist() if visible[row]}
            if keys:
                found[verdicts.rule.id] = keys
        return found

    def fires(self, rule: str) -> set[str]:
        """Return the subjects for which a rule fires, hidden ones too."""
        assert self.judgement is not None
        verdicts = self.judgement.verdicts[rule]
        return {verdicts.table.keys[row] for row in verdicts.firing.tolist() if not verdicts.table.retired[row]}

    def device(self, name: str, key: str | None = None) -> float:
        """Return an input of a GPU."""
        row = self.devices.row(self.key if key is None else key)
        assert row is not None
        return float(self.devices.column(name)[row])

    def machine_number(self, name: str) -> float:
        """Return an input of the machine with the faults."""
        assert self.tables is not None
        row = self.tables.machines.row(f"{CLUSTER}/{self.machine}")
        assert row is not None
        return float(self.tables.machines.column(name)[row])

    def machine_text(self, name: str) -> str | None:
        """Return a text of the machine with the faults."""
        assert self.tables is not None
        row = self.tables.machines.row(f"{CLUSTER}/{self.machine}")
        assert row is not None
        return self.tables.machines.text(name, row)

    def _pass(self) -> CollectionPass:
        return CollectionPass(at=self.now, since=self.now - 60 * NANOS, lanes=tuple(LANES), intervals=LANES)

    def inputs(self, fault: Fault = NO_FAULT) -> ClusterInputs:
        """Return what is known about the cluster now."""
        reports = [report for node in self._nodes for report in machine_reports(self.fleet, node, self._pass())]
        stored = {one.machine.name: self._samples(one, fault) for one in reports}
        readers = {one.machine.name: one.readers for one in reports}
        layouts = self._layouts(reports, fault)
        return ClusterInputs(
            cluster=CLUSTER,
            newest=newest_columns(stored, FACT_METRICS, readers, layouts),
            machines=self._machines(reports, fault),
            holders=self._holders(reports, fault),
            events=[
                EventCount(self.machine, self.gpu, kind, code, (self.now - int(age * NANOS),), 1)
                for kind, code, age in fault.events
            ],
        )

    def _samples(self, report: MachineReport, fault: Fault) -> list[StoredSample]:
        machine, found = report.machine.name, []
        is_target = machine == self.machine
        has_driver = any(one.view is not None and one.view.side == "host" for one in report.samples)
        samples = [*report.samples]
        if has_driver or is_target:
            samples += [_sample("nvml", lane, self.now) for lane in (Lane.FAST, Lane.SLOW)]
        newest = [one for one in samples if is_target and one.view is not None and one.view.key == self.gpu]
        for one in samples:
            values: dict[str, Value | Absent] = {}
            is_gpu = one.view is not None and one.view.kind is ViewKind.GPU
            if is_gpu and one.view is not None and one.view.side == "host":
                values |= GPU_VALUES
                mode = one.values.get("gpu_mig_mode")
                values |= {"gpu_mig_mode_pending": mode} if isinstance(mode, str) else {}
            if one.view is None and one.reader == "nvml" and has_driver:
                values |= NODE_VALUES
            if is_target and one.view is None:
                covered = {*values, *one.values, *(labelled(dim.metric, *dim.labels) for dim in one.dims)}
                is_first = one.reader == "nvml" and not has_driver
                values |= {name: value for name, value in fault.node.items() if is_first or name in covered}
            if one in newest:
                values |= fault.gpu
            if one in newest and fault.is_gone:
                continue
            age = fault.ages.get(one.lane, 0.0) if is_target else 0.0
            received_at = self.now - int((2 + age) * NANOS)
            sample = _with(one, values)
            if one in newest and fault.dropped:
                kept = {name: value for name, value in sample.values.items() if name not in fault.dropped}
                sample = msgspec.structs.replace(sample, values=kept)
            found.append(StoredSample(sample=sample, received_at=received_at))
        if is_target and fault.extra is not None:
            found += fault.extra(newest)
        if is_target and fault.is_imported:
            return imported([one.sample for one in found if one.sample.view is not None])
        return found

    def _machines(self, reports: Sequence[MachineReport], fault: Fault) -> MachineInputs:
        names = [one.machine.name for one in reports]
        at = names.index(self.machine)
        is_guest = [one.machine.hypervisor is not None for one in reports]
        is_host = [one.machine.name in {guest.machine.hypervisor for guest in reports} for one in reports]
        on_bus = [None if guest else float(GPUS) for guest in is_guest]
        in_kubernetes = [None if host else count for host, count in zip(is_host, on_bus, strict=True)]
        kubernetes = ("kubernetes_gpus", "allocatable_gpus", "allocated_gpus")
        columns: dict[str, list[float | None]] = {
            "unseen_seconds": [5.0] * len(names),
            "interval_seconds": [30.0] * len(names),
            "pci_gpus": on_bus,
            **{name: list(in_kubernetes) for name in kubernetes},
            "identity_conflict": [0.0] * len(names),
            "agents": [1.0] * len(names),
            "unresolved_devices": [0.0] * len(names),
            "passthrough_gpus": [None] * len(names),
            "node_deleted_seconds": [float("inf")] * len(names),
        }
        for name, number in fault.inputs.items():
            columns[name][at] = number
        return MachineInputs(
            machines=names,
            retired=[False] * len(names),
            hypervisors=[one.machine.hypervisor for one in reports],
            system_uuids=[one.machine.system_uuid for one in reports],
            last_errors=[LAST_ERROR] * len(names),
            **columns,  # type: ignore[arg-type]
        )

    def _holders(self, reports: Sequence[MachineReport], fault: Fault) -> HolderColumns:
        rows = [
            (one.machine.name, device.view, float(device.state is HolderState.HELD), 0, False)
            for one in reports
            for device in one.device_holders or ()
            if device.view.startswith("gpu/")
        ]
        rows = [row for row in rows if row[:2] != (self.machine, self.gpu)]
        if fault.held is not None:
            since = self.now - int(fault.held_seconds * NANOS)
            rows.append((self.machine, self.gpu, fault.held, since, fault.conflict))
        machine, view, held, starts, conflict = zip(*rows, strict=True)
        return HolderColumns(machine=machine, view=view, held=held, since=starts, conflict=conflict)

    def _layouts(self, reports: Sequence[MachineReport], fault: Fault) -> dict[tuple[str, str], str]:
        found: dict[tuple[str, str], list[str]] = {}
        for one in reports:
            for sample in one.samples:
                profile = sample.values.get("mig_profile")
                if sample.view is not None and sample.view.parent and isinstance(profile, str):
                    found.setdefault((one.machine.name, sample.view.parent), []).append(profile)
        layouts = {place: ", ".join(sorted(profiles)) for place, profiles in found.items()}
        if fault.mig_layout is not None:
            layouts[self.machine, self.gpu] = fault.mig_layout
        return layouts

    def _duplicates(self, fault: Fault) -> ViewColumns:
        machines = [self.machine, *fault.reporters] if fault.reporters else []
        return ViewColumns(
            cluster=[CLUSTER] * len(machines),
            machine=machines,
            view=[self.gpu] * len(machines),
            received_at=[self.now - 5 * NANOS] * len(machines),
        )


def _sample(reader: str, lane: Lane, at: int) -> Sample:
    return Sample(view=None, reader=reader, lane=lane, measured_at=at, values={}, driver_session=7)


def _with(sample: Sample, values: Values) -> Sample:
    """Return the sample with the values of its lane."""
    own = {name: value for name, value in values.items() if CATALOGUE[split_labelled(name)[0]].lane is sample.lane}
    dims = [
        DimValue(metric, labels, value)
        for name, value in own.items()
        for metric, labels in [split_labelled(name)]
        if labels
    ]
    plain = {name: value for name, value in own.items() if "{" not in name}
    return msgspec.structs.replace(sample, values={**sample.values, **plain}, dims=(*sample.dims, *dims))


def imported(samples: Sequence[Sample], values: Values = NO_VALUES, reader: str = "exporter") -> list[StoredSample]:
    """Return the samples as an exporter on the machine reports them now, with the values of `values`."""
    return [
        StoredSample(
            sample=msgspec.structs.replace(_with(one, values), reader=reader, provenance=Provenance.IMPORTED),
            received_at=one.measured_at,
        )
        for one in samples
    ]
