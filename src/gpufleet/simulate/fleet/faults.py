"""What goes wrong in the fleet, when, and for how long. One table of kinds; `docs/simulate.md` shows it."""

import enum
import re
from typing import NamedTuple

import msgspec

from gpufleet.model.time import NANOS


class Level(enum.IntEnum):
    """What a fault is about."""

    CLUSTER = 1
    NODE = 2
    GPU = 3


class FaultKind(enum.StrEnum):
    """One way in which a fleet goes wrong."""

    SILENT_CLUSTER = "silent-cluster"
    HALF_CLUSTER = "half-cluster"
    SILENT_NODE = "silent-node"
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


class FaultRow(NamedTuple):
    """One row of the table.

    Attributes:
        level: what it is about.
        lasts: seconds unless told otherwise; 0 for what happens at an instant.
        amount: the number after `=`: what it is, and what it is unless told; empty where there is none.
        default: that number.
        least, most: what it may be.
        whole: whether it counts something, and has no fractions.
        happens: what the fleet does.
        expected: what a hub says then, in its own words.
    """

    level: Level
    lasts: float
    amount: str
    default: float
    happens: str
    expected: str
    least: float = 0
    most: float = 0
    whole: bool = False


_K, _CLUSTER, _NODE, _GPU = FaultKind, Level.CLUSTER, Level.NODE, Level.GPU
_SILENCE = "late after 75 s, stale after 5 min, lost after 60 min; live with its next batch"

FAULTS: dict[FaultKind, FaultRow] = {
    _K.SILENT_CLUSTER: FaultRow(
        _CLUSTER, 600, "", 0, "every node of the cluster is off: nothing is measured, nothing sent",
        f"the cluster and all its senders are {_SILENCE}"),
    _K.HALF_CLUSTER: FaultRow(
        _CLUSTER, 600, "", 0, "every second node of the cluster is off",
        "the cluster stays live, and is partial: half of its senders are not live, half of its GPUs report"),
    _K.SILENT_NODE: FaultRow(
        _NODE, 600, "", 0, "the node is off",
        f"the node is {_SILENCE}; its cluster stays live, and is partial"),
    _K.BACKFILL: FaultRow(
        _NODE, 900, "", 0, "the node measures on, and cannot reach its hub; then the newest batch goes first",
        "as silent; then live at once, its missing batches come in until none is missing, each at its own time"),
    _K.AGENT_RESTART: FaultRow(
        _NODE, 20, "", 0, "the agent stops and starts again with its spool: same epoch, the numbers go on",
        "live; nothing is missing, nothing is suspect"),
    _K.NODE_REBOOT: FaultRow(
        _NODE, 60, "", 0, "the node boots: a new boot id, a new driver session, counters from zero",
        "live; nothing is missing, nothing is suspect"),
    _K.SPOOL_WIPED: FaultRow(
        _NODE, 0, "batches that were in it", 3, "the spool is lost with these batches; a new epoch begins",
        "live; so many batches of the old epoch stay missing", 1, 100_000, True),
    _K.LOST_BATCHES: FaultRow(
        _NODE, 0, "batches", 5, "the spool was full: the agent drops these numbers, and counts them",
        "live; so many batches stay missing, and as many are dropped, as the sender says", 1, 100_000, True),
    _K.CLOCK_STEP: FaultRow(
        _NODE, 600, "seconds ahead, negative for behind", 300, "the node's clock is off; then it is right again",
        "live and suspect: its clock is so many seconds off. What is more than 600 s ahead is not stored",
        -9_999_999, 9_999_999),
    _K.CLONED_MACHINE: FaultRow(
        _NODE, 600, "", 0, "a machine with the same machine-id and another name sends, too",
        "both are live, and suspect: their evidence contradicts each other's"),
    _K.CLONED_SPOOL: FaultRow(
        _NODE, 600, "", 0, "a copy of the node, spool and all, counts under the same epoch",
        "the sender is suspect: two machines count under its epoch; who comes second takes a new one"),
    _K.GPU_LOST: FaultRow(
        _GPU, 600, "", 0, "the GPU falls off the bus: XID 79, then every reading is absent with gpu_lost",
        "the node stays live; one GPU fewer reports once its last values are 120 s old, or at once where it is told"),
    _K.GPU_HUNG: FaultRow(
        _GPU, 300, "", 0, "the driver does not come back from calls about the GPU: readings are absent with timeout",
        "the node stays live; its reader is partial, and one GPU fewer reports"),
    _K.HOT_GPU: FaultRow(
        _GPU, 600, "celsius above its slowdown", 3, "the GPU is too hot: hardware slows it down, it draws less",
        "the node stays live; temperature, clocks and the clock event reasons tell, and an event of each end",
        0, 50),
    _K.XID: FaultRow(
        _GPU, 0, "number of the XID", 63, "the driver reports an error of the GPU",
        "an event; nothing else changes", 1, 9_999, True),
}  # fmt: skip


class FaultError(ValueError):
    """A fault cannot be read; its text says what to write."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault on the schedule.

    Attributes:
        kind: what happens.
        begin, end: nanoseconds since 1970, the end not included; the same for what happens at an instant.
        cluster, node, gpu: of what; clusters and nodes count from 1, GPUs from 0.
        amount: the kind's number.
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
    """Return seconds of `90s`, `5m`, `2h` or `1d`.

    Raises:
        FaultError: if it is none of those.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise FaultError(f"{text!r} is not a span of time such as 30s, 15m or 2h")
    return int(found[1]) * _SECONDS[found[2]]


def parse_faults(text: str, start: int) -> tuple[Fault, ...]:
    """Read faults, with commas between them; instants count from `start`, nanoseconds since 1970.

    Raises:
        FaultError: if one cannot be read.
    """
    return tuple(_parse(one.strip(), start) for one in text.split(",") if one.strip())


def _parse(text: str, start: int) -> Fault:
    found = _FAULT.fullmatch(text)
    if found is None:
        raise FaultError(f"{text!r} is not {FORM}, such as silent-cluster@+5m/10m:c2")
    try:
        kind = FaultKind(found["kind"])
    except ValueError:
        raise FaultError(f"no fault is called {found['kind']!r}: `--faults list` shows all there are") from None
    row = FAULTS[kind]
    if found["amount"] and not row.amount:
        raise FaultError(f"{text!r}: {kind} takes no amount")
    amount = float(found["amount"]) if found["amount"] else row.default
    if row.amount and not (row.least <= amount <= row.most and not (row.whole and amount % 1)):
        number = "a whole number" if row.whole else "a number"
        raise FaultError(f"{text!r}: the {row.amount} must be {number} from {row.least:.0f} to {row.most:.0f}")
    if found["lasts"] and not row.lasts:
        raise FaultError(f"{text!r}: {kind} happens at an instant")
    named = 3 if found["gpu"] else 2 if found["node"] else 1 if found["cluster"] else 0
    if named > row.level:
        raise FaultError(f"{text!r}: {kind} is of a whole {row.level.name.lower()}")
    begin = start + parse_span(found["after"]) * NANOS
    lasts = parse_span(found["lasts"]) if found["lasts"] else row.lasts
    return Fault(
        kind=kind,
        begin=begin,
        end=begin + int(lasts * NANOS),
        cluster=int(found["cluster"] or 1),
        node=int(found["node"] or 1),
        gpu=int(found["gpu"] or 0),
        amount=amount,
    )


class Schedule:
    """Faults by what they are about, to be asked of one node or GPU."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        """Take them."""
        self.faults = faults
        self._of_clusters: dict[int, list[Fault]] = {}
        self._of_nodes: dict[tuple[int, int], list[Fault]] = {}
        self._of_gpus: dict[tuple[int, int, int], list[Fault]] = {}
        for one in faults:
            match FAULTS[one.kind].level:
                case Level.CLUSTER:
                    self._of_clusters.setdefault(one.cluster, []).append(one)
                case Level.NODE:
                    self._of_nodes.setdefault((one.cluster, one.node), []).append(one)
                case Level.GPU:
                    self._of_gpus.setdefault((one.cluster, one.node, one.gpu), []).append(one)

    def of_node(self, cluster: int, node: int) -> tuple[Fault, ...]:
        """Return the faults of a node, its cluster's among them, in the order of their begins."""
        found = [*self._of_nodes.get((cluster, node), ())]
        found += [
            one for one in self._of_clusters.get(cluster, ()) if one.kind is FaultKind.SILENT_CLUSTER or node % 2 == 0
        ]
        return tuple(sorted(found, key=lambda one: one.begin))

    def of_gpu(self, cluster: int, node: int, gpu: int) -> tuple[Fault, ...]:
        """Return the faults of a GPU in the order of their begins."""
        return tuple(sorted(self._of_gpus.get((cluster, node, gpu), ()), key=lambda one: one.begin))
