"""Facts of a fleet, judged by the rules: each fault fires its own rule, and healthy machines fire none."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.fleet.facts.core_readings import UNEXPLAINED, WATCHED_METRICS
from gpufleet.fleet.facts.fleet import fleet_tables
from gpufleet.fleet.facts.history import FactMemory
from gpufleet.fleet.facts.metrics import FACT_METRICS, MISSING, NOISY_READINGS
from gpufleet.fleet.facts.supplied import ClusterInputs, MachineInputs
from gpufleet.fleet.rules.inputs import INPUTS, TEXTS
from gpufleet.fleet.rules.table import RULES
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.device_state import CORE_READINGS
from gpufleet.model.finding import RuleScope
from gpufleet.model.machine import PCI_READER
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.readings import labelled, split_labelled
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.support.fact_world import CLUSTER, LAST_ERROR, STALE_AFTER, START, FactWorld, Fault, imported
from tests.support.newest import newest_columns

DEVICE, MACHINE = RuleScope.DEVICE, RuleScope.MACHINE
INFERENCE, MIG, ALL_ROLES = (3, 9, 15), (4, 16), (1, 3, 9, 15, 4, 16, 5, 6, 7, 8)
TARGET, HOST = 3, 5
FREE = {"gpu_utilization_ratio": 0.0, "gpu_power_watts": 90.0, "gpu_memory_used_bytes": 4 << 20}
FROZEN = dict.fromkeys(NOISY_READINGS, 0.5) | {
    "gpu_power_watts": 300.0,
    "gpu_memory_clock_hertz": 10**9,
    "gpu_sm_clock_hertz": 10**9,
    "gpu_energy_joules_total": 1e12,
}


class Case(NamedTuple):
    """Fault that fires a rule.

    Attributes:
        fault: the fault.
        also: other rules that it fires.
        target: number of the node.
    """

    fault: Fault
    also: frozenset[str] = frozenset()
    target: int = TARGET


def gpu(**values: object) -> Case:
    """Return the case of a GPU with these values."""
    return Case(Fault(gpu=values))  # type: ignore[arg-type]


def inputs(**values: float | None) -> Case:
    """Return the case of a machine with these inputs."""
    return Case(Fault(inputs=values))


def xid(code: int, number: int = 1) -> Case:
    """Return the case of a GPU with an XID."""
    return Case(Fault(events=[("xid", code, 600.0 + at) for at in range(number)]))


def of_another_gpu(samples: Sequence[Sample]) -> list[StoredSample]:
    """Return samples of a GPU that was in the slot of another one two hours ago."""
    view = next(one.view for one in samples if one.view is not None)
    other = msgspec.structs.replace(view, uuid="GPU-before")
    ago = [one.measured_at - 7200 * NANOS for one in samples]
    return [
        StoredSample(sample=msgspec.structs.replace(one, view=other, measured_at=at), received_at=at)
        for one, at in zip(samples, ago, strict=True)
    ]


def on_bus(samples: Sequence[Sample], reason: Reason) -> StoredSample:
    """Return the GPU as only the PCI bus shows it."""
    (address,) = {one.view.pci_address for one in samples if one.view is not None}
    at = max(one.measured_at for one in samples)
    view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=address)
    values: dict[str, Value | Absent] = {"gpu_state": Absent(reason)}
    sample = Sample(view=view, reader=PCI_READER, lane=Lane.SLOW, measured_at=at, values=values)
    return StoredSample(sample=sample, received_at=at)


def passed_through(samples: Sequence[Sample]) -> list[StoredSample]:
    """Return values of an exporter on the host, and the GPU as the PCI bus shows it: bound to vfio-pci."""
    return [*imported(samples), on_bus(samples, Reason.BOUND_TO_VFIO)]


def not_listed(samples: Sequence[Sample]) -> list[StoredSample]:
    """Return the GPU as the PCI bus shows it: the driver does not list it."""
    return [on_bus(samples, Reason.DRIVER_ERROR)]


def in_milliwatts(samples: Sequence[Sample]) -> list[StoredSample]:
    """Return values of an exporter on the host with a power of a thousand times the reported one."""
    fast = next(one for one in samples if one.lane is Lane.FAST)
    return imported([fast], {"gpu_power_watts": 1000.0 * float(fast.values["gpu_power_watts"])})  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    # freshness and counts
    "node.missing": inputs(unseen_seconds=200.0),
    "node.retired": inputs(node_deleted_seconds=60.0),
    "node.inventory_unconfirmed": Case(Fault(ages={Lane.STATIC: 1500.0})),
    "node.gpus_stale": Case(Fault(ages=dict.fromkeys((Lane.FAST, Lane.SLOW), 400.0))),
    "gpu.metrics_missing": gpu(gpu_power_watts=Absent(Reason.TIMEOUT)),
    "node.gpu_count_mismatch": inputs(pci_gpus=3.0),
    "node.expected_unknown": inputs(pci_gpus=None, kubernetes_gpus=None, allocatable_gpus=None),
    "node.below_class_max": Case(
        Fault(is_gone=True, inputs=dict.fromkeys(("pci_gpus", "kubernetes_gpus", "allocatable_gpus"), 1.0))
    ),
    "node.hidden_when_idle": Case(
        Fault(
            is_gone=True,
            is_imported=True,
            inputs={"pci_gpus": None, "allocated_gpus": 1.0, "allocatable_gpus": None},
        )
    ),
    "gpu.lost": gpu(gpu_state="lost"),
    # identity
    "node.identity_conflict": inputs(identity_conflict=1.0),
    "node.duplicate_agent": inputs(agents=2.0),
    "gpu.duplicate_uuid": Case(Fault(reporters=("sim-1-n0009",))),
    "gpu.replaced": Case(Fault(extra=of_another_gpu)),
    "gpu.holder_conflict": Case(Fault(held=1.0, held_seconds=60.0, conflict=True)),
    # values
    "gpu.frozen": Case(Fault(gpu=FROZEN, minutes=12), also=frozenset({"gpu.counter_frozen"})),
    "gpu.counter_frozen": Case(Fault(gpu={"gpu_energy_joules_total": 1e12}, minutes=4)),
    "gpu.counter_reset": gpu(gpu_pcie_replays_total=-1),
    "gpu.invalid_value": gpu(gpu_temperature_celsius=Absent(Reason.INVALID_VALUE)),
    "gpu.impossible_value": gpu(gpu_memory_used_bytes=2 << 40),
    "gpu.unit_mismatch": Case(Fault(extra=in_milliwatts)),
    "gpu.source_mismatch": Case(
        Fault(is_gone=True, extra=passed_through, inputs={"allocatable_gpus": None, "kubernetes_gpus": None})
    ),
    "gpu.utilization_missing_at_power": Case(
        Fault(gpu={"gpu_utilization_ratio": 0.0, "gpu_power_watts": 600.0}, held=1.0, held_seconds=60.0)
    ),
    # use
    "gpu.allocated_idle": Case(Fault(gpu=FREE, held=1.0, held_seconds=2000.0)),
    "gpu.allocated_parked": Case(Fault(gpu={**FREE, "gpu_memory_used_bytes": 60 << 30}, held=1.0, held_seconds=2000.0)),
    "gpu.used_unallocated": Case(Fault(held=0.0)),
    "gpu.busy_at_low_power": gpu(gpu_utilization_ratio=1.0, gpu_power_watts=100.0),
    "node.unresolved_devices": inputs(unresolved_devices=1.0),
    # faults
    "node.gpu_stack_broken": Case(Fault(node={"nvidia_driver_state": "mismatch"})),
    "node.fabric_down": Case(Fault(node={labelled("host_service_state", "nvidia-fabricmanager"): "not_running"})),
    "gpu.reset_required": gpu(gpu_state="reset_required"),
    "gpu.hung": gpu(gpu_state="hung"),
    "gpu.unreadable": gpu(gpu_state="unreadable"),
    "gpu.recovery_action": gpu(gpu_recovery_action="gpu_reset"),
    "gpu.ecc_uncorrected": gpu(gpu_ecc_uncorrected_errors_total=2),
    "gpu.row_remap_failed": gpu(gpu_row_remap_failed=1),
    "gpu.row_remap_pending": gpu(gpu_row_remap_pending=1),
    "gpu.repair_pending": gpu(gpu_tpc_repair_pending=1),
    "gpu.unrepairable_memory": gpu(gpu_unrepairable_memory=1),
    "gpu.retired_pages": Case(
        Fault(
            gpu={
                labelled("gpu_retired_pages", "single_bit"): 4,
                labelled("gpu_retired_pages", "double_bit"): 6,
            }
        )
    ),
    "gpu.nvlink_down": gpu(gpu_nvlinks_active=17),
    "gpu.fabric_unhealthy": Case(Fault(gpu={labelled("gpu_fabric_health", "route_unhealthy"): 1})),
    "gpu.pcie_degraded": gpu(gpu_pcie_link_width=8),
    "gpu.throttled": gpu(gpu_clock_event_reasons_mask=0x8 | 0x40),
    # XIDs
    "gpu.xid.reset": xid(46),
    "gpu.xid.repair": xid(54),
    "gpu.xid.investigate": xid(48),
    "gpu.xid.software": xid(78),
    "gpu.xid.unclassified": xid(9999),
    "gpu.xid.application": xid(31),
    "node.repeat_offender": Case(
        Fault(events=[*(("xid", 46, 600.0 + at) for at in range(5)), ("gpu_recovered", 10, 300.0)])
    ),
    "node.xid_blind": Case(Fault(node={"host_kernel_log_lost_messages_total": 8})),
    # drift
    "node.driver_drift": Case(Fault(node={"nvidia_driver_version": "580.1"})),
    "gpu.vbios_drift": gpu(gpu_vbios_version="1.2.3"),
    "gpu.mig_layout_drift": Case(Fault(mig_layout="7g.141gb"), target=MIG[0]),
    "gpu.mig_mode_pending": gpu(gpu_mig_mode_pending="enabled"),
}
NEEDS_MORE = {"reader_ratio", "nvlinks_day_before", "last_error", "recovery_action", "xid_codes", "missing_readings"}
"""Inputs that need two readers, a day, or a fault: other tests have them."""

JUDGED = [rule.id for rule in RULES if rule.scope in (DEVICE, MACHINE)]


def healthy_world(target: int = TARGET) -> FactWorld:
    """Return a world that was healthy for three minutes."""
    world = FactWorld((*INFERENCE, *MIG), target)
    for _ in range(3):
        assert world.judge() == {}
    return world


def test_each_rule_has_a_case() -> None:
    assert set(CASES) == set(JUDGED)


@pytest.mark.parametrize("rule", CASES)
def test_fault_fires_its_rule_only(rule: str) -> None:
    case = CASES[rule]
    world = healthy_world(case.target)
    for _ in range(case.fault.minutes):
        found = world.judge(case.fault)
    subject = world.key if rule.startswith("gpu.") else f"{CLUSTER}/{world.machine}"
    assert world.fires(rule) == {subject}
    assert found == {one: {subject} for one in (rule, *case.also)}


def test_healthy_machines_of_every_role_fire_nothing() -> None:
    world = FactWorld(ALL_ROLES, TARGET)
    assert [world.judge() for _ in range(75)] == [{}] * 75
    assert world.tables is not None
    tables = {DEVICE: world.tables.devices, MACHINE: world.tables.machines}
    for scope, table in tables.items():
        unknown = {name for name in INPUTS[scope] if np.isnan(table.column(name)).all()}
        assert unknown - NEEDS_MORE == set(MISSING[scope]) & set(INPUTS[scope])
        rows = range(len(table))
        unknown = {name for name in TEXTS[scope] if not any(table.text(name, row) for row in rows)}
        assert unknown - NEEDS_MORE == set(MISSING[scope]) & set(TEXTS[scope])


def test_lost_machine_has_no_values() -> None:
    world = healthy_world()
    without_reports = Fault(ages=dict.fromkeys(Lane, 400.0), inputs={"unseen_seconds": 400.0})
    assert world.judge(without_reports) == {"node.missing": {f"{CLUSTER}/{world.machine}"}}
    unknown = (
        "lost",
        "power_watts",
        "failed_core_readings",
        "invalid_readings",
        "identical_cycles",
        "uncorrected_errors",
    )
    assert np.isnan([world.device(name) for name in unknown]).all()


def test_values_that_are_not_flushed_are_not_stale() -> None:
    world = healthy_world()
    inputs = msgspec.structs.replace(world.inputs(Fault(ages={Lane.FAST: 400.0, Lane.SLOW: 400.0})), flush_seconds=398)
    tables = fleet_tables([inputs], FactMemory(), world.now, STALE_AFTER, cluster_rows={CLUSTER: 0})
    row = tables.machines.row(f"{CLUSTER}/{world.machine}")
    assert tables.machines.column("gpu_value_seconds")[row] == 4


def test_machine_without_gpus_of_the_driver_has_no_stale_gpus() -> None:
    world = healthy_world()
    ages = dict.fromkeys((Lane.FAST, Lane.SLOW), 400.0)
    world.judge(Fault(ages=ages, inputs={"pci_gpus": 0.0}))
    assert np.isnan(world.machine_number("gpu_value_seconds"))
    world.judge(Fault(ages=ages, inputs={"pci_gpus": 2.0, "passthrough_gpus": 1.0}))
    assert world.machine_number("gpu_value_seconds") == 402


def test_gpu_that_the_driver_does_not_list_is_lost() -> None:
    world = healthy_world()
    found = world.judge(Fault(is_gone=True, extra=not_listed))
    assert {rule: len(keys) for rule, keys in found.items()} == {"gpu.lost": 1}
    assert "/gpu/pci/" in min(found["gpu.lost"])


@pytest.mark.parametrize(
    ("is_imported", "age", "lost"),
    [(False, 600.0, 0.0), (False, 20.0, 1.0), (True, 600.0, 1.0)],  # a pass can begin before the XID
)
def test_gpu_that_its_driver_reads_after_xid_79_is_back(is_imported: bool, age: float, lost: float) -> None:
    """An exporter can repeat what it read before."""
    world = FactWorld([1, 2], 1)
    world.judge(Fault(is_imported=is_imported, events=[("xid", 79, age)]))
    assert world.device("lost") == lost


def test_gpu_that_was_back_after_xid_79_is_not_lost_by_it_later() -> None:
    world = healthy_world()
    world.judge(Fault(events=[("xid", 79, 600.0)]))
    found = world.judge(Fault(gpu={"gpu_state": "hung"}, events=[("xid", 79, 660.0)]))
    assert {rule for rule in found if rule.startswith("gpu.")} == {"gpu.hung"}
    world.judge(Fault(gpu={"gpu_state": "hung"}, events=[("xid", 79, 60.0)]))
    assert world.device("lost") == 1


def test_boot_ends_xids_also_if_the_agent_stops_later() -> None:
    """No event reports the boot: the kernel log is not readable."""
    world = healthy_world()
    fault = Fault(node={"host_boot_timestamp_seconds": START // NANOS - 600}, events=[("xid", 119, 3600.0)])
    world.judge(fault)
    assert not world.fires("gpu.xid.reset")
    world.judge(msgspec.structs.replace(fault, ages=dict.fromkeys(Lane, 400.0)))
    assert not world.fires("gpu.xid.reset")


def test_gpu_without_a_state_works_if_a_reading_proves_it() -> None:
    """Some exporters report failures only."""
    world, lost = FactWorld([1, 2], 1), dict.fromkeys(CORE_READINGS, Absent(Reason.GPU_LOST))
    assert "gpu.lost" in world.judge(Fault(is_imported=True, gpu={"gpu_state": "lost", **lost}))
    world.judge(Fault(is_imported=True, dropped=("gpu_state",), gpu=lost))
    assert np.isnan(world.device("lost"))
    world.judge(Fault(is_imported=True, dropped=("gpu_state",)))
    assert [world.device(name) for name in ("lost", "hung", "unreadable")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("state", "age"),
    [("lost", 400.0), (Absent(Reason.STALE), 1.0)],  # its agent has stopped; the agent's passes fail
)
def test_values_that_an_exporter_repeats_prove_nothing_after_a_failure(state: Value | Absent, age: float) -> None:
    """The page of an exporter has old values of a GPU that an agent lost."""
    world = healthy_world()

    def repeated(samples: Sequence[Sample]) -> list[StoredSample]:
        (one,) = [one for one in samples if one.lane is Lane.FAST]
        values: dict[str, Value | Absent] = dict.fromkeys(CORE_READINGS, 100.0)
        return imported([msgspec.structs.replace(one, values=values)])

    lost = dict.fromkeys(CORE_READINGS, Absent(Reason.GPU_LOST))
    world.judge(Fault(gpu={"gpu_state": state, **lost}, ages={Lane.FAST: age}, extra=repeated))
    assert world.device("power_watts") == 100
    assert np.isnan(world.device("lost"))


@pytest.mark.parametrize(("reader", "lost"), [("otlp", np.nan), ("remote_write/gpufleet", np.nan), ("exporter", 0.0)])
def test_readings_that_an_agent_pushes_without_a_state_prove_nothing(reader: str, lost: float) -> None:
    """Its reader of the state measured at another time."""
    world = healthy_world()

    def pushed(samples: Sequence[Sample]) -> list[StoredSample]:
        (one,) = [one for one in samples if one.lane is Lane.FAST]
        values: dict[str, Value | Absent] = dict.fromkeys(CORE_READINGS, 100.0)
        return imported([msgspec.structs.replace(one, values=values)], reader=reader)

    world.judge(Fault(is_gone=True, extra=pushed))
    assert world.device("power_watts") == 100
    np.testing.assert_equal(world.device("lost"), lost)


def test_gpu_that_only_netdata_repeats_is_not_the_drivers() -> None:
    world = healthy_world()

    def repeated(samples: Sequence[Sample]) -> list[StoredSample]:
        return [
            StoredSample(
                sample=msgspec.structs.replace(one, reader="netdata", provenance=Provenance.HOST_NETDATA),
                received_at=one.measured_at,
            )
            for one in samples
        ]

    fault = Fault(
        is_gone=True,
        extra=repeated,
        inputs=dict.fromkeys(("pci_gpus", "kubernetes_gpus", "allocatable_gpus"), 1.0),
    )
    assert world.judge(fault) == {"node.below_class_max": {f"{CLUSTER}/{world.machine}"}}
    assert (world.machine_number("nvml_gpus"), world.machine_number("imported")) == (1, 0)


def test_passed_through_gpu_is_not_missing() -> None:
    world = healthy_world()
    fault = Fault(
        is_gone=True,
        extra=lambda samples: [on_bus(samples, Reason.BOUND_TO_VFIO)],
        inputs={"kubernetes_gpus": None, "allocatable_gpus": None},
    )
    assert world.judge(fault) == {}
    assert world.device("bound_to_vfio", min(key for key in world.devices.keys if "/gpu/pci/" in key)) == 1


def test_driver_of_a_host_without_gpus_of_its_own_is_not_judged() -> None:
    world = FactWorld((HOST,), HOST)
    assert world.judge(Fault(node={"nvidia_driver_state": "no_driver", "nvidia_devices": 0})) == {}
    assert world.machine_text("driver_state") == "no_driver"


@pytest.mark.parametrize("reason", [None, *sorted(UNEXPLAINED - {Reason.STALE})])
@pytest.mark.parametrize("metric", WATCHED_METRICS)
def test_core_reading_that_vanishes_is_missing(metric: str, reason: Reason | None) -> None:
    world = healthy_world()
    fault = Fault(dropped=[metric]) if reason is None else Fault(gpu={metric: Absent(reason)})
    assert world.judge(fault) == {"gpu.metrics_missing": {world.key}}
    assert world.devices.text("missing_readings", world.devices.keys.index(world.key)) == metric
    assert world.judge() == {}


def test_core_readings_of_a_stale_lane_are_missing() -> None:
    world = healthy_world()
    found = world.judge(Fault(ages={Lane.FAST: 150.0}))
    assert found == {"gpu.metrics_missing": {f"{CLUSTER}/{world.machine}/{key}" for key in world.gpus}}


@pytest.mark.parametrize("name", ["all_smi_gpu_utilization", "all_smi_gpu_memory_used_bytes"])
def test_zero_of_an_idle_gpu_by_all_smi_is_not_missing(name: str) -> None:
    family = ALL_SMI.families[name]
    assert family.zero is not None
    assert healthy_world().judge(Fault(gpu={family.metric: Absent(family.zero)})) == {}


def test_utilization_that_mig_mode_hides_is_not_missing() -> None:
    world = healthy_world()
    fault = Fault(dropped=["gpu_utilization_ratio"], mig_layout="7g.141gb")
    assert "gpu.metrics_missing" not in world.judge(fault)
    assert world.device("missing_core_readings") == 0


def test_restart_leaves_what_is_not_known_missing() -> None:
    world = healthy_world()
    for _ in range(60):
        world.judge()
    windows = ("identical_cycles", "identical_energy_cycles", "unexplained_resets", "uncorrected_errors")
    assert not np.isnan([world.device(name) for name in windows]).any()
    world.memory = FactMemory()
    assert world.judge() == {}
    assert np.isnan([world.device(name) for name in windows]).all()


def test_evidence_names_the_xids() -> None:
    world = healthy_world()
    world.judge(Fault(events=[("xid", 31, 60.0), ("xid", 48, 30.0)]))
    assert world.judgement is not None
    verdicts = world.judgement.verdicts["gpu.xid.investigate"]
    assert verdicts.evidence(int(verdicts.firing[0])) == {"xids_investigate": "1", "xid_codes": "31, 48"}


def test_evidence_names_the_recovery_action_and_the_error() -> None:
    world = healthy_world()
    world.judge(Fault(gpu={"gpu_recovery_action": "drain_p2p"}, node={"nvidia_driver_state": "mismatch"}))
    assert world.judgement is not None
    found: dict[str, str] = {}
    for rule in ("gpu.recovery_action", "node.gpu_stack_broken"):
        verdicts = world.judgement.verdicts[rule]
        found |= verdicts.evidence(int(verdicts.firing[0]))
    assert found["recovery_action"] == "drain_p2p"
    assert (found["driver_state"], found["last_error"]) == ("mismatch", LAST_ERROR)


def test_cluster_without_readings_has_machines_only() -> None:
    machines = MachineInputs(machines=["m"], retired=[False], hypervisors=[None], pci_gpus=[8.0], kubernetes_gpus=[8.0])
    inputs = ClusterInputs(cluster="c", newest=newest_columns({}, FACT_METRICS), machines=machines)
    tables = fleet_tables([inputs], FactMemory(), START, 120.0, cluster_rows={"c": 0})
    assert (tables.machines.keys, tables.devices.keys) == (["c/m"], [])
    known = [name for name in INPUTS[MACHINE] if not np.isnan(tables.machines.column(name)).any()]
    assert known == ["pci_gpus", "passthrough_gpus", "kubernetes_gpus", "expectation_sources"]


def test_clusters_share_the_tables() -> None:
    worlds = [FactWorld((TARGET,), TARGET), FactWorld((TARGET,), TARGET)]
    for world in worlds:
        world.judge()
    inputs = [msgspec.structs.replace(world.inputs(), cluster=name) for name, world in zip("ab", worlds, strict=True)]
    tables = fleet_tables(inputs, FactMemory(), worlds[0].now, 120.0, cluster_rows={"a": 0, "b": 1})
    assert [key[0] for key in tables.devices.keys] == ["a", "a", "b", "b"]
    assert tables.devices.parent_rows(MACHINE).tolist() == [0, 0, 1, 1]
    assert tables.machines.parent_rows(RuleScope.CLUSTER).tolist() == [0, 1]
    assert set(tables.newest_value_at) == {"a", "b"}


def test_needed_metrics_are_those_of_the_catalogue() -> None:
    assert {split_labelled(name)[0] for name in FACT_METRICS} <= CATALOGUE.keys()
