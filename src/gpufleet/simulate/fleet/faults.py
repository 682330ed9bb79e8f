"""Faults of the simulated fleet and their schedule. `docs/simulate.md` shows the table of kinds."""

import enum
import re
from typing import NamedTuple

import msgspec

from gpufleet.model.time import NANOS


class FaultLevel(enum.IntEnum):
    """Level that a fault affects."""

    CLUSTER = 1
    NODE = 2
    GPU = 3


class FaultKind(enum.StrEnum):
    """Kind of fault."""

    # outages and restarts
    CLUSTER_OFF = "cluster-off"
    HALF_CLUSTER = "half-cluster"
    NODE_OFF = "node-off"
    NODE_DELETED = "node-deleted"
    BACKFILL = "backfill"
    AGENT_RESTART = "agent-restart"
    NODE_REBOOT = "node-reboot"
    COLLECTOR_BROKEN = "collector-broken"
    READERS_BROKEN = "readers-broken"
    NO_INVENTORY = "no-inventory"
    GUEST_DOWN = "guest-down"
    GUEST_REPLACED = "guest-replaced"
    # delivery and clocks
    SPOOL_WIPED = "spool-wiped"
    LOST_BATCHES = "lost-batches"
    DELAYED_BATCHES = "delayed-batches"
    STUCK_BATCHES = "stuck-batches"
    CLOCK_STEP = "clock-step"
    LATE_DATA = "late-data"
    # identity
    CLONED_MACHINE = "cloned-machine"
    CLONED_SPOOL = "cloned-spool"
    DUPLICATE_AGENT = "duplicate-agent"
    DUPLICATE_GPU = "duplicate-gpu"
    GPU_REPLACED = "gpu-replaced"
    # counts
    NO_PCI = "no-pci"
    GPU_REMOVED = "gpu-removed"
    GPU_UNLISTED = "gpu-unlisted"
    GPU_UNALLOCATABLE = "gpu-unallocatable"
    HIDDEN_WHEN_IDLE = "hidden-when-idle"
    # state of GPU and driver
    GPU_LOST = "gpu-lost"
    GPU_HUNG = "gpu-hung"
    RESET_REQUIRED = "reset-required"
    GPU_UNREADABLE = "gpu-unreadable"
    CORE_FAILED = "core-failed"
    READING_DROPPED = "reading-dropped"
    RECOVERY_ACTION = "recovery-action"
    DRIVER_BROKEN = "driver-broken"
    FABRIC_MANAGER_STOPPED = "fabric-manager-stopped"
    # memory, links and heat
    HOT_GPU = "hot-gpu"
    ECC_ERROR = "ecc-error"
    ROW_REMAP_FAILED = "row-remap-failed"
    ROW_REMAP_PENDING = "row-remap-pending"
    REPAIR_PENDING = "repair-pending"
    UNREPAIRABLE_MEMORY = "unrepairable-memory"
    RETIRED_PAGES = "retired-pages"
    NVLINK_DOWN = "nvlink-down"
    FABRIC_UNHEALTHY = "fabric-unhealthy"
    PCIE_DEGRADED = "pcie-degraded"
    # XIDs
    XID = "xid"
    XID_BLIND = "xid-blind"
    # values
    FROZEN_VALUES = "frozen-values"
    FROZEN_ENERGY = "frozen-energy"
    COUNTER_RESET = "counter-reset"
    INVALID_VALUE = "invalid-value"
    MEMORY_ABOVE_TOTAL = "memory-above-total"
    POWER_ABOVE_LIMIT = "power-above-limit"
    CLOCK_ABOVE_MAXIMUM = "clock-above-maximum"
    UNIT_MISMATCH = "unit-mismatch"
    HOST_VALUES = "host-values"
    NO_UTILIZATION = "no-utilization"
    ZERO_UTILIZATION = "zero-utilization"
    # use and holders
    HELD_IDLE = "held-idle"
    HELD_PARKED = "held-parked"
    USED_UNHELD = "used-unheld"
    LOW_POWER = "low-power"
    HOLDER_CONFLICT = "holder-conflict"
    UNRESOLVED_DEVICES = "unresolved-devices"
    ATTRIBUTION_GAP = "attribution-gap"
    # drift
    DRIVER_DRIFT = "driver-drift"
    VBIOS_DRIFT = "vbios-drift"
    MIG_LAYOUT = "mig-layout"
    MIG_MODE_PENDING = "mig-mode-pending"


class FaultRow(NamedTuple):
    """Row of the table of faults.

    Attributes:
        level: level that it affects.
        duration: default duration in seconds; 0 for an instantaneous fault.
        effect: effect on the fleet.
        findings: rules whose findings it can open at the hub, if it lasts long enough.
        expected: other expected state at the hub, or empty.
        amount: meaning of the number after `=`; empty if the fault has none.
        default: default of that number.
        minimum, maximum: range of that number.
        whole: whether it is an integer.
    """

    level: FaultLevel
    duration: float
    effect: str
    findings: tuple[str, ...] = ()
    expected: str = ""
    amount: str = ""
    default: float = 0
    minimum: float = 0
    maximum: float = 0
    whole: bool = False


_K, _CLUSTER, _NODE, _GPU = FaultKind, FaultLevel.CLUSTER, FaultLevel.NODE, FaultLevel.GPU
_OFFLINE = "late after 75 s, stale after 5 min, lost after 60 min; live with its next batch"
_PARTIAL = "cluster.partial"

FAULTS: dict[FaultKind, FaultRow] = {
    _K.CLUSTER_OFF: FaultRow(
        _CLUSTER, 600, "every node of the cluster is off: nothing is measured or sent",
        ("cluster.stale", "hub.network"), f"the cluster and all its senders are {_OFFLINE}"),
    _K.HALF_CLUSTER: FaultRow(
        _CLUSTER, 600, "every second node of the cluster is off", (_PARTIAL, "node.missing"),
        "the cluster stays live, and is partial: half of its senders are not live, half of its GPUs report"),
    _K.NODE_OFF: FaultRow(
        _NODE, 600, "the node is off", ("node.missing", _PARTIAL),
        f"the node is {_OFFLINE}; its cluster stays live, and is partial"),
    _K.NODE_DELETED: FaultRow(
        _NODE, 900, "the node is off, and Kubernetes deletes it; in the role inference, with a cluster collector",
        ("node.retired", _PARTIAL),
        "the node is retired once it is late, and is not expected; live with its next batch"),
    _K.BACKFILL: FaultRow(
        _NODE, 900, "the node keeps measuring, but cannot reach its hub; later the newest batch is sent first",
        ("node.missing", _PARTIAL, "sender.backfilled"),
        "as `node-off`; then live at once; missing batches arrive until none is missing, each with its own time"),
    _K.AGENT_RESTART: FaultRow(
        _NODE, 20, "the agent restarts with its spool: same epoch, the sequence numbers continue", (),
        "live; nothing is missing, nothing is suspect"),
    _K.NODE_REBOOT: FaultRow(
        _NODE, 60, "the node boots: a new boot id, a new driver session, counters from zero", (),
        "live; nothing is missing, nothing is suspect"),
    _K.COLLECTOR_BROKEN: FaultRow(
        _CLUSTER, 600, "the readers of the cluster's GPUs fail: agents send heartbeats and host readings only",
        ("cluster.collector_broken", _PARTIAL)),
    _K.READERS_BROKEN: FaultRow(
        _NODE, 600, "the readers of the node's GPUs fail: its agent sends heartbeats and host readings only",
        ("node.gpus_stale", _PARTIAL)),
    _K.NO_INVENTORY: FaultRow(
        _NODE, 1800, "the static readings of the node fail", ("node.inventory_unconfirmed",)),
    _K.GUEST_DOWN: FaultRow(
        _NODE, 900, "the node's virtual machines do not answer its agent", ("allocation.unavailable", _PARTIAL)),
    _K.GUEST_REPLACED: FaultRow(
        _NODE, 0, "the node's virtual machines are deleted, and others get their GPUs; in the role VM", (),
        "the guests have other names and identities, the holders of the GPUs change"),
    _K.SPOOL_WIPED: FaultRow(
        _NODE, 0, "the spool is lost with these batches; a new epoch begins", ("sender.gap",),
        "live; these batches of the old epoch stay missing", "batches that were in it", 3, 1, 100_000, True),
    _K.LOST_BATCHES: FaultRow(
        _NODE, 0, "the spool was full: the agent drops batches with these numbers, and counts them",
        ("sender.dropping", "sender.gap"),
        "live; these batches stay missing, and the sender reports as many as dropped", "batches", 5, 1, 100_000, True),
    _K.DELAYED_BATCHES: FaultRow(
        _NODE, 900, "the first batches do not arrive before the end, and the agent does not report them as queued",
        ("sender.gap", "sender.backfilled"), "", "batches", 5, 1, 10_000, True),
    _K.STUCK_BATCHES: FaultRow(
        _NODE, 1800, "the first batches stay queued until the end; later ones are sent",
        ("sender.backlog", "sender.backfilled"), "", "batches", 5, 1, 10_000, True),
    _K.CLOCK_STEP: FaultRow(
        _NODE, 600, "the node's clock is off; then it is right again",
        ("sender.clock_skew", "hub.clock_skew", _PARTIAL),
        "live and suspect, with the offset of its clock. Data more than 600 s ahead is not stored",
        "seconds ahead, negative for behind", 300, -9_999_999, 9_999_999),
    _K.LATE_DATA: FaultRow(
        _NODE, 900, "the agent sends each batch with values that were measured earlier", ("sender.late_data",), "",
        "seconds", 90, 1, 86_400),
    _K.CLONED_MACHINE: FaultRow(
        _NODE, 600, "another machine with the same machine-id and another name sends, too",
        ("node.identity_conflict", "node.missing"),
        "both are live, and suspect: their evidence contradicts each other's"),
    _K.CLONED_SPOOL: FaultRow(
        _NODE, 600, "a copy of the node with its spool sends under the same epoch",
        ("sender.identity_conflict", "node.identity_conflict", "node.missing"),
        "the sender is suspect: two machines number batches under its epoch; the second to send starts a new one"),
    _K.DUPLICATE_AGENT: FaultRow(
        _NODE, 600, "a second agent on the node sends under another name", ("node.duplicate_agent",)),
    _K.DUPLICATE_GPU: FaultRow(
        _GPU, 600, "an exporter on the node reports the GPU at this position of the next node, too",
        ("gpu.duplicate_uuid",)),
    _K.GPU_REPLACED: FaultRow(
        _GPU, 0, "from then on another GPU is in the slot: a new UUID and serial number", ("gpu.replaced",)),
    _K.NO_PCI: FaultRow(
        _NODE, 1200, "the agent cannot read the PCI buses; the hub keeps an earlier list", ("node.expected_unknown",)),
    _K.GPU_REMOVED: FaultRow(
        _GPU, 600, "the GPU is not in the machine: neither on the bus nor in the driver",
        ("node.below_class_max", _PARTIAL, "allocation.partial", "allocation.unavailable")),
    _K.GPU_UNLISTED: FaultRow(
        _GPU, 600, "the bus has the GPU, and the driver does not list it",
        ("gpu.lost", _PARTIAL)),
    _K.GPU_UNALLOCATABLE: FaultRow(
        _NODE, 600, "the device plugin declares a GPU as unhealthy; in the role inference, with a cluster collector",
        ("node.gpu_count_mismatch",)),
    _K.HIDDEN_WHEN_IDLE: FaultRow(
        _NODE, 1200, "the last GPU has no pod, and an exporter in place of the agent's reader hides it; in the role "
        "inference, with a cluster collector", ("node.hidden_when_idle", _PARTIAL)),
    _K.GPU_LOST: FaultRow(
        _GPU, 600, "the GPU falls off the bus: XID 79, then every reading is absent with gpu_lost",
        ("gpu.lost", _PARTIAL),
        "the node stays live; one GPU fewer reports once its last values are 120 s old, or at once if reported lost"),
    _K.GPU_HUNG: FaultRow(
        _GPU, 300, "the driver hangs in calls about the GPU: readings are absent with timeout", ("gpu.hung", _PARTIAL),
        "the node stays live; its reader is partial, and one GPU fewer reports"),
    _K.RESET_REQUIRED: FaultRow(
        _GPU, 600, "every reading is absent with reset_required", ("gpu.reset_required", _PARTIAL)),
    _K.GPU_UNREADABLE: FaultRow(
        _GPU, 1200, "every reading is absent with driver_error", ("gpu.unreadable", _PARTIAL)),
    _K.CORE_FAILED: FaultRow(
        _GPU, 600, "the driver fails to read the power of the GPU", ("gpu.metrics_missing",)),
    _K.READING_DROPPED: FaultRow(
        _GPU, 600, "the reader no longer gives the power of the GPU, without a reason", ("gpu.metrics_missing",)),
    _K.RECOVERY_ACTION: FaultRow(
        _GPU, 900, "the driver recommends to drain and reset the GPU", ("gpu.recovery_action",)),
    _K.DRIVER_BROKEN: FaultRow(
        _NODE, 600, "library and kernel driver have different versions: only the bus shows the GPUs",
        ("node.gpu_stack_broken", _PARTIAL)),
    _K.FABRIC_MANAGER_STOPPED: FaultRow(
        _NODE, 600, "the service nvidia-fabricmanager does not run", ("node.fabric_down",)),
    _K.HOT_GPU: FaultRow(
        _GPU, 600, "the GPU is too hot: hardware slows it down, it draws less", ("gpu.throttled",),
        "the node stays live; temperature, clocks and clock event reasons change, with an event at start and end",
        "celsius above its slowdown", 3, 0, 50),
    _K.ECC_ERROR: FaultRow(
        _GPU, 0, "uncorrectable memory errors: XID 94, and a row remap is pending until the node boots",
        ("gpu.ecc_uncorrected", "gpu.row_remap_pending", "gpu.xid.application"),
        "three events; the counts of errors, remapped rows and XIDs grow", "errors", 1, 1, 100, True),
    _K.ROW_REMAP_FAILED: FaultRow(_GPU, 600, "a memory row could not be remapped", ("gpu.row_remap_failed",)),
    _K.ROW_REMAP_PENDING: FaultRow(_GPU, 600, "a memory row waits for a remap", ("gpu.row_remap_pending",)),
    _K.REPAIR_PENDING: FaultRow(_GPU, 600, "a memory channel waits for a repair", ("gpu.repair_pending",)),
    _K.UNREPAIRABLE_MEMORY: FaultRow(
        _GPU, 600, "the memory has errors that cannot be repaired", ("gpu.unrepairable_memory",)),
    _K.RETIRED_PAGES: FaultRow(_GPU, 600, "12 memory pages are retired", ("gpu.retired_pages",)),
    _K.NVLINK_DOWN: FaultRow(_GPU, 900, "a quarter of the NVLinks is down", ("gpu.nvlink_down",)),
    _K.FABRIC_UNHEALTHY: FaultRow(
        _GPU, 900, "the GPU is unhealthy in its NVLink fabric; from Hopper on", ("gpu.fabric_unhealthy",)),
    _K.PCIE_DEGRADED: FaultRow(_GPU, 1200, "the PCIe link has 8 of 16 lanes", ("gpu.pcie_degraded",)),
    _K.XID: FaultRow(
        _GPU, 0, "the driver reports an error of the GPU",
        ("gpu.xid.application", "gpu.xid.reset", "gpu.xid.repair", "gpu.xid.investigate", "gpu.xid.software",
         "gpu.xid.unclassified", "gpu.lost", "node.repeat_offender"),
        "an event, and the counts of XIDs; nothing else changes", "number of the XID", 63, 1, 9_999, True),
    _K.XID_BLIND: FaultRow(
        _NODE, 1200, "the driver does not deliver events to the agent", ("node.xid_blind",)),
    _K.FROZEN_VALUES: FaultRow(
        _GPU, 900, "the driver repeats the values and counters of the start", ("gpu.frozen", "gpu.counter_frozen")),
    _K.FROZEN_ENERGY: FaultRow(_GPU, 600, "the energy counter stands still", ("gpu.counter_frozen",)),
    _K.COUNTER_RESET: FaultRow(
        _GPU, 600, "the energy counter starts again in the same driver session", ("gpu.counter_reset",)),
    _K.INVALID_VALUE: FaultRow(
        _GPU, 600, "the driver gives a sentinel as the temperature of the memory", ("gpu.invalid_value",)),
    _K.MEMORY_ABOVE_TOTAL: FaultRow(
        _GPU, 240, "more memory is in use than the GPU has", ("gpu.impossible_value", "gpu.used_unallocated")),
    _K.POWER_ABOVE_LIMIT: FaultRow(
        _GPU, 240, "the power is twice its limit",
        ("gpu.impossible_value", "gpu.utilization_missing_at_power")),
    _K.CLOCK_ABOVE_MAXIMUM: FaultRow(_GPU, 600, "the clock is far above its maximum", ("gpu.impossible_value",)),
    _K.UNIT_MISMATCH: FaultRow(
        _GPU, 600, "a second reader reports memory in MiB, as bytes", ("gpu.unit_mismatch",)),
    _K.HOST_VALUES: FaultRow(
        _GPU, 600, "an exporter on the host reports values of a GPU that is bound to vfio-pci; in the role VM",
        ("gpu.source_mismatch",)),
    _K.NO_UTILIZATION: FaultRow(
        _GPU, 900, "the utilisation is 0 at 90 % of the power limit", ("gpu.utilization_missing_at_power",)),
    _K.ZERO_UTILIZATION: FaultRow(
        _CLUSTER, 240, "every GPU of the cluster reports a utilisation of 0",
        ("cluster.zero_anomaly", "gpu.utilization_missing_at_power", "gpu.allocated_parked")),
    _K.HELD_IDLE: FaultRow(_GPU, 3600, "a job has the GPU and does not use it", ("gpu.allocated_idle",)),
    _K.HELD_PARKED: FaultRow(
        _GPU, 7200, "a job has the GPU and half of its memory, and does not compute", ("gpu.allocated_parked",)),
    _K.USED_UNHELD: FaultRow(_GPU, 900, "a process without holder uses the GPU", ("gpu.used_unallocated",)),
    _K.LOW_POWER: FaultRow(
        _GPU, 1800, "the utilisation is 1 at a quarter of the power limit", ("gpu.busy_at_low_power",)),
    _K.HOLDER_CONFLICT: FaultRow(
        _GPU, 600, "a process of another job uses the GPU", ("gpu.holder_conflict",)),
    _K.UNRESOLVED_DEVICES: FaultRow(
        _NODE, 1200, "a holder source has device names that identify no device", ("node.unresolved_devices",), "",
        "names", 2, 1, 1000, True),
    _K.ATTRIBUTION_GAP: FaultRow(
        _CLUSTER, 5400, "the kubelets do not answer the agents: the holders of pods' devices are unknown; with a "
        "cluster collector", ("cluster.attribution_gap",)),
    _K.DRIVER_DRIFT: FaultRow(_NODE, 7200, "the node has an older driver", ("node.driver_drift",)),
    _K.VBIOS_DRIFT: FaultRow(_GPU, 7200, "the GPU has an older VBIOS", ("gpu.vbios_drift",)),
    _K.MIG_LAYOUT: FaultRow(
        _GPU, 7200, "the GPU has one MIG device fewer; in the role MIG", ("gpu.mig_layout_drift",)),
    _K.MIG_MODE_PENDING: FaultRow(_GPU, 7200, "MIG mode changes at the next reset", ("gpu.mig_mode_pending",)),
}  # fmt: skip


class FaultError(ValueError):
    """Malformed fault; the text explains the correct form."""


class FleetFault(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduled fault.

    Attributes:
        kind: its kind.
        begin, end: nanoseconds since 1970, end excluded; equal for an instantaneous fault.
        cluster, node, gpu: location; clusters and nodes count from 1, GPUs from 0.
        amount: number of the kind.
    """

    kind: FaultKind
    begin: int
    end: int
    cluster: int = 1
    node: int = 1
    gpu: int = 0
    amount: float = 0.0


FORM = "KIND[=AMOUNT]@+AFTER[/LASTS][:cN[/nN[/gN]]]"

_FAULT = re.compile(
    r"(?P<kind>[a-z-]+)(?:=(?P<amount>-?\d{1,7}(?:\.\d{1,3})?))?@\+(?P<after>\w+?)(?:/(?P<lasts>\w+?))?"
    r"(?::c(?P<cluster>[1-9]\d{0,5})(?:/n(?P<node>[1-9]\d{0,5})(?:/g(?P<gpu>\d{1,3}))?)?)?"
)
_SPAN = re.compile(r"(\d{1,7})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_span(text: str) -> int:
    """Return the seconds of `90s`, `5m`, `2h` or `1d`.

    Raises:
        FaultError: if it has another form.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise FaultError(f"{text!r} is not a duration such as 30s, 15m or 2h")
    return int(found[1]) * _SECONDS[found[2]]


def parse_faults(text: str, start: int) -> tuple[FleetFault, ...]:
    """Parse comma-separated faults; instants count from `start`, nanoseconds since 1970.

    Raises:
        FaultError: if a fault is malformed.
    """
    return tuple(_parse(one.strip(), start) for one in text.split(",") if one.strip())


def _parse(text: str, start: int) -> FleetFault:
    found = _FAULT.fullmatch(text)
    if found is None:
        raise FaultError(f"{text!r} does not have the form {FORM}, such as cluster-off@+5m/10m:c2")
    try:
        kind = FaultKind(found["kind"])
    except ValueError:
        raise FaultError(f"unknown fault {found['kind']!r}: `--faults list` shows all kinds") from None
    row = FAULTS[kind]
    if found["amount"] and not row.amount:
        raise FaultError(f"{text!r}: {kind} takes no amount")
    amount = float(found["amount"]) if found["amount"] else row.default
    if row.amount and not (row.minimum <= amount <= row.maximum and not (row.whole and amount % 1)):
        number = "a whole number" if row.whole else "a number"
        raise FaultError(f"{text!r}: the {row.amount} must be {number} from {row.minimum:.0f} to {row.maximum:.0f}")
    if found["lasts"] and not row.duration:
        raise FaultError(f"{text!r}: {kind} is instantaneous: remove /{found['lasts']}")
    named = 3 if found["gpu"] else 2 if found["node"] else 1 if found["cluster"] else 0
    if named > row.level:
        raise FaultError(f"{text!r}: {kind} affects a whole {row.level.name.lower()}: name no smaller part")
    begin = start + parse_span(found["after"]) * NANOS
    duration = parse_span(found["lasts"]) if found["lasts"] else row.duration
    return FleetFault(
        kind=kind,
        begin=begin,
        end=begin + int(duration * NANOS),
        cluster=int(found["cluster"] or 1),
        node=int(found["node"] or 1),
        gpu=int(found["gpu"] or 0),
        amount=amount,
    )


class FaultSchedule:
    """Faults by cluster, node and GPU."""

    def __init__(self, faults: tuple[FleetFault, ...]) -> None:
        """Take the faults."""
        self.faults = faults
        self._of_clusters: dict[int, list[FleetFault]] = {}
        self._of_nodes: dict[tuple[int, int], list[FleetFault]] = {}
        self._of_gpus: dict[tuple[int, int, int], list[FleetFault]] = {}
        for one in faults:
            match FAULTS[one.kind].level:
                case FaultLevel.CLUSTER:
                    self._of_clusters.setdefault(one.cluster, []).append(one)
                case FaultLevel.NODE:
                    self._of_nodes.setdefault((one.cluster, one.node), []).append(one)
                case FaultLevel.GPU:
                    self._of_gpus.setdefault((one.cluster, one.node, one.gpu), []).append(one)
        for found in self._of_gpus.values():
            found.sort(key=lambda one: one.begin)

    def of_node(self, cluster: int, node: int) -> tuple[FleetFault, ...]:
        """Return the faults of a node and of its cluster, in the order of their start."""
        found = [*self._of_nodes.get((cluster, node), ())]
        found += [
            one for one in self._of_clusters.get(cluster, ()) if one.kind is not FaultKind.HALF_CLUSTER or node % 2 == 0
        ]
        return tuple(sorted(found, key=lambda one: one.begin))

    def of_gpu(self, cluster: int, node: int, gpu: int) -> tuple[FleetFault, ...]:
        """Return the faults of a GPU in the order of their start."""
        return tuple(self._of_gpus.get((cluster, node, gpu), ()))
