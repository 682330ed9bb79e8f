"""Prepared senders: batch bodies that are complete except for their numbers, at little processor cost.

A load generator beside the hub under test cannot compute a million GPUs. Therefore only some nodes, the twins, are
computed once per period. Every other node sends its twin's values under its own name, with its own epoch, sequence
numbers and devices. Only the sequence number, the send time, and the twin's columns for the start of the period are
inserted into the bytes of a body. The full agents (`agents.py`) report everything, at a far higher cost.
"""

import struct

import msgspec

from gpufleet import __version__
from gpufleet.codecs.batch.compression import compress
from gpufleet.codecs.batch.message import pack_block
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE_VERSION, Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from gpufleet.model.wire.batch import WIRE_VERSION, Cell, SampleBlock, WireAbsence, WireBatch
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.layout import FleetNode, NodeRole
from gpufleet.simulate.fleet.random_values import digits, uuid_of
from gpufleet.simulate.fleet.values import gpu_fast

WHOLE_GPU_ROLES = (NodeRole.TRAINING, NodeRole.INFERENCE, NodeRole.BATCH, NodeRole.IDLE)
"""Roles of nodes that can be twins: their driver shows whole GPUs."""

_ENCODER = msgspec.msgpack.Encoder()
_ARRAY = bytes((0x90 + len(WireBatch.__struct_fields__),))
_NUMBERS = struct.Struct(">BQBQ")
_UINT64 = 0xCF
_NOTHING = b"\x90\x90\xc0"  # no dims, no parts, no cluster part


class TwinColumns:
    """Values of a twin's GPUs, encoded as the absences and samples of a batch."""

    def __init__(self, fleet: Fleet, node: FleetNode, period: int) -> None:
        """Take the node, and the length of a period in nanoseconds."""
        self._fleet = fleet
        self._node = node
        self._period = period
        self._at = 0
        self._content = b""

    def at(self, instant: int) -> bytes:
        """Return the bytes for the period of an instant."""
        begin = instant // self._period * self._period
        if begin != self._at:
            self._at, self._content = begin, _content(self._fleet, self._node, begin)
        return self._content


class LoadGenerator:
    """Nodes of a cluster with their twins. Nodes count from 0 here."""

    def __init__(self, fleet: Fleet, *, cluster: str, prefix: str, started_at: int, period_seconds: float) -> None:
        """Take the fleet whose nodes with whole GPUs are the twins, and the identity of the senders.

        Args:
            fleet: the twins are nodes of its first cluster.
            cluster: id of the cluster that the bodies name.
            prefix: of the nodes' names.
            started_at: start of the senders, nanoseconds since 1970; epochs depend on it.
            period_seconds: between two bodies of a node.
        """
        self._period = int(period_seconds * NANOS)
        self._twins = [node for node in fleet.nodes() if node.cluster == 1 and node.role in WHOLE_GPU_ROLES]
        self._numbers = [TwinColumns(fleet, node, self._period) for node in self._twins]
        self._cluster = cluster
        self._prefix = prefix
        self._started_at = started_at

    def twin(self, number: int) -> FleetNode:
        """Return the node whose values a node sends."""
        return self._twins[number % len(self._twins)]

    def name(self, number: int) -> str:
        """Return the name of a node, which is its sender name."""
        return f"{self._prefix}-{number:06d}"

    def epoch(self, number: int) -> str:
        """Return the epoch of a node."""
        return digits(32, self._started_at, self.name(number), "epoch")

    def views(self, number: int) -> list[View]:
        """Return a node's GPUs: at the addresses of its twin's, with UUIDs of their own."""
        name = self.name(number)
        return [
            msgspec.structs.replace(gpu.view, uuid=f"GPU-{uuid_of(name, gpu.number)}") for gpu in self.twin(number).gpus
        ]

    def prepare(self, number: int, epoch: str | None = None) -> "PreparedSender":
        """Return the prepared sender of a node, with its own epoch by default."""
        name = self.name(number)
        heartbeat = Heartbeat(interval_seconds=30, version=__version__, started_at=self._started_at)
        machine = Machine(name=name, machine_id=digits(32, name), boot_id=uuid_of(name, "boot"))
        head = (WIRE_VERSION, CATALOGUE_VERSION, self._cluster, name, epoch or self.epoch(number))
        return PreparedSender(
            _ARRAY + b"".join(map(_ENCODER.encode, head)),
            b"".join(map(_ENCODER.encode, (heartbeat, [machine], self.views(number)))),
            self._numbers[number % len(self._numbers)],
        )


class PreparedSender:
    """Prepared sender of a node. Its sequence numbers start at 1, and every body has a heartbeat."""

    __slots__ = ("_head", "_numbers", "_who", "made")

    def __init__(self, head: bytes, who: bytes, numbers: TwinColumns) -> None:
        """Take the bytes before the numbers, the bytes between the numbers and the samples, and the samples."""
        self._head = head
        self._who = who
        self._numbers = numbers
        self.made = 0

    def next_body(self, at: int, *, packed: bool = True) -> bytes:
        """Return the next body, sent at an instant; `packed` compresses it with zstd, as an agent does."""
        self.made += 1
        numbers = _NUMBERS.pack(_UINT64, self.made, _UINT64, at)
        message = b"".join((self._head, numbers, self._who, self._numbers.at(at), _NOTHING))
        return compress(message) if packed else message


def gpu_columns(fleet: Fleet, node: FleetNode, at: int) -> tuple[list[str], list[list[Cell]], list[list[WireAbsence]]]:
    """Return metric names, a column for each, and a set of absences per GPU, of a node's GPUs."""
    booted_at = fleet.booted_at(node, at)
    every = [gpu_fast(gpu, at, booted_at, fleet.activity(node, gpu, at)) for gpu in node.gpus]
    names = list(every[0])
    found: list[list[Cell]] = [
        [None if isinstance(value := values[name], Absent) else value for values in every] for name in names
    ]
    absences = [
        [
            WireAbsence(name, value.reason, value.detail)
            for name, value in sorted(values.items())
            if isinstance(value, Absent)
        ]
        for values in every
    ]
    return names, found, absences


def _content(fleet: Fleet, node: FleetNode, at: int) -> bytes:
    names, found, absences = gpu_columns(fleet, node, at)
    sets: list[list[WireAbsence]] = []
    places = [_place(one, sets) for one in absences]
    count = len(node.gpus)
    block = SampleBlock(
        reader="nvml",
        lane=Lane.FAST.value,
        provenance=Provenance.HOST_LOCAL_PROBE.value,
        metrics=names,
        machine=[0] * count,
        view=list(range(count)),
        measured_at=[at] * count,
        driver_session=[fleet.booted_at(node, at) // NANOS] * count,
        absence=places,
        columns=found,
    )
    return _ENCODER.encode(sets) + _ENCODER.encode([pack_block(block)])


def _place(absences: list[WireAbsence], sets: list[list[WireAbsence]]) -> int:
    """Return the index of a set of absences in the list; a new set is appended."""
    if not absences:
        return -1
    if absences not in sets:
        sets.append(absences)
    return sets.index(absences)
