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

    CLUSTER_OFF = "cluster-off"
    HALF_CLUSTER = "half-cluster"
    NODE_OFF = "node-off"
    BACKFILL = "backfill"
    AGENT_RESTART = "agent-restart"
    NODE_REBOOT = "node-reboot"
    SPOOL_WIPED = "spool-wiped"
    LOST_BATCHES = "lost-batches"
    CLOCK_STEP = "clock-step"
    CLONED_MACHINE = "cloned-machine"
    CLONED_SPOOL = "cloned-spool"
    GPU_LOST = "gpu-lost"
    GPU_HUNG = "gpu-hung"
    HOT_GPU = "hot-gpu"
    XID = "xid"
    ECC_ERROR = "ecc-error"


class FaultRow(NamedTuple):
    """Row of the table of faults.

    Attributes:
        level: level that it affects.
        duration: default duration in seconds; 0 for an instantaneous fault.
        amount: meaning of the number after `=`; empty if the fault has none.
        default: default of that number.
        minimum, maximum: range of that number.
        whole: whether it is an integer.
        effect: effect on the fleet.
        expected: expected state at the hub.
    """

    level: FaultLevel
    duration: float
    amount: str
    default: float
    effect: str
    expected: str
    minimum: float = 0
    maximum: float = 0
    whole: bool = False


_K, _CLUSTER, _NODE, _GPU = FaultKind, FaultLevel.CLUSTER, FaultLevel.NODE, FaultLevel.GPU
_OFFLINE = "late after 75 s, stale after 5 min, lost after 60 min; live with its next batch"

FAULTS: dict[FaultKind, FaultRow] = {
    _K.CLUSTER_OFF: FaultRow(
        _CLUSTER, 600, "", 0, "every node of the cluster is off: nothing is measured or sent",
        f"the cluster and all its senders are {_OFFLINE}"),
    _K.HALF_CLUSTER: FaultRow(
        _CLUSTER, 600, "", 0, "every second node of the cluster is off",
        "the cluster stays live, and is partial: half of its senders are not live, half of its GPUs report"),
    _K.NODE_OFF: FaultRow(
        _NODE, 600, "", 0, "the node is off",
        f"the node is {_OFFLINE}; its cluster stays live, and is partial"),
    _K.BACKFILL: FaultRow(
        _NODE, 900, "", 0, "the node keeps measuring, but cannot reach its hub; later the newest batch is sent first",
        "as `node-off`; then live at once; missing batches arrive until none is missing, each with its own time"),
    _K.AGENT_RESTART: FaultRow(
        _NODE, 20, "", 0, "the agent restarts with its spool: same epoch, the sequence numbers continue",
        "live; nothing is missing, nothing is suspect"),
    _K.NODE_REBOOT: FaultRow(
        _NODE, 60, "", 0, "the node boots: a new boot id, a new driver session, counters from zero",
        "live; nothing is missing, nothing is suspect"),
    _K.SPOOL_WIPED: FaultRow(
        _NODE, 0, "batches that were in it", 3, "the spool is lost with these batches; a new epoch begins",
        "live; these batches of the old epoch stay missing", 1, 100_000, True),
    _K.LOST_BATCHES: FaultRow(
        _NODE, 0, "batches", 5, "the spool was full: the agent drops batches with these numbers, and counts them",
        "live; these batches stay missing, and the sender reports as many as dropped", 1, 100_000, True),
    _K.CLOCK_STEP: FaultRow(
        _NODE, 600, "seconds ahead, negative for behind", 300, "the node's clock is off; then it is right again",
        "live and suspect, with the offset of its clock. Data more than 600 s ahead is not stored",
        -9_999_999, 9_999_999),
    _K.CLONED_MACHINE: FaultRow(
        _NODE, 600, "", 0, "another machine with the same machine-id and another name sends, too",
        "both are live, and suspect: their evidence contradicts each other's"),
    _K.CLONED_SPOOL: FaultRow(
        _NODE, 600, "", 0, "a copy of the node with its spool sends under the same epoch",
        "the sender is suspect: two machines number batches under its epoch; the second to send starts a new one"),
    _K.GPU_LOST: FaultRow(
        _GPU, 600, "", 0, "the GPU falls off the bus: XID 79, then every reading is absent with gpu_lost",
        "the node stays live; one GPU fewer reports once its last values are 120 s old, or at once if reported lost"),
    _K.GPU_HUNG: FaultRow(
        _GPU, 300, "", 0, "the driver hangs in calls about the GPU: readings are absent with timeout",
        "the node stays live; its reader is partial, and one GPU fewer reports"),
    _K.HOT_GPU: FaultRow(
        _GPU, 600, "celsius above its slowdown", 3, "the GPU is too hot: hardware slows it down, it draws less",
        "the node stays live; temperature, clocks and clock event reasons change, with an event at start and end",
        0, 50),
    _K.XID: FaultRow(
        _GPU, 0, "number of the XID", 63, "the driver reports an error of the GPU",
        "an event, and the counts of XIDs; nothing else changes", 1, 9_999, True),
    _K.ECC_ERROR: FaultRow(
        _GPU, 0, "errors", 1, "uncorrectable memory errors: XID 94, and a row remap is pending until the node boots",
        "three events; the counts of errors, remapped rows and XIDs grow", 1, 100, True),
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
            one for one in self._of_clusters.get(cluster, ()) if one.kind is FaultKind.CLUSTER_OFF or node % 2 == 0
        ]
        return tuple(sorted(found, key=lambda one: one.begin))

    def of_gpu(self, cluster: int, node: int, gpu: int) -> tuple[FleetFault, ...]:
        """Return the faults of a GPU in the order of their start."""
        return tuple(self._of_gpus.get((cluster, node, gpu), ()))
