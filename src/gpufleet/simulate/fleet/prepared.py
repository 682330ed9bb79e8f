"""Many senders for little processor time: bodies that lie ready but for their numbers.

A light client beside the hub that it loads cannot work out a million GPUs. So some nodes, the twins, are worked out
once a period, and every other node tells its twin's numbers under its own name, with its own epoch, sequence and
devices. What is put into the bytes of a body is only its number, when it is sent, and the twin's columns: of the begin
of the period in which it is sent. Full agents (`agents.py`) tell everything, and cost far more.
"""

import struct

import msgspec

from gpufleet import __version__
from gpufleet.codecs.batch.compression import compress
from gpufleet.codecs.batch.packed import pack_block
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE_VERSION, Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from gpufleet.model.wire.batch import WIRE_VERSION, Cell, SampleBlock, WireAbsence, WireBatch
from gpufleet.simulate.fleet.chance import digits, uuid_of
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.layout import Node, Role
from gpufleet.simulate.fleet.values import gpu_fast

WHOLE = (Role.TRAINING, Role.INFERENCE, Role.BATCH, Role.IDLE)
"""Nodes that a light client can stand for: those whose driver shows whole GPUs."""

_ENCODER = msgspec.msgpack.Encoder()
_ARRAY = bytes((0x90 + len(WireBatch.__struct_fields__),))
_NUMBERS = struct.Struct(">BQBQ")
_UINT64 = 0xCF
_NOTHING = b"\x90\x90"  # no dims, no parts


class Numbers:
    """What a twin's GPUs say, as the bytes of absences and samples."""

    def __init__(self, fleet: Fleet, node: Node, period: int) -> None:
        """Take which node, and the nanoseconds of a period."""
        self._fleet = fleet
        self._node = node
        self._period = period
        self._at = 0
        self._content = b""

    def at(self, instant: int) -> bytes:
        """Return the bytes of the period that an instant is in."""
        begin = instant // self._period * self._period
        if begin != self._at:
            self._at, self._content = begin, _content(self._fleet, self._node, begin)
        return self._content


class Herd:
    """So many nodes of one cluster, by their twins. Nodes count from 0 here."""

    def __init__(self, fleet: Fleet, *, cluster: str, prefix: str, started_at: int, period_seconds: float) -> None:
        """Take the fleet whose nodes of whole GPUs are the twins, and who sends.

        Args:
            fleet: the twins are the nodes of its first cluster.
            cluster: id of the cluster that the bodies are of.
            prefix: of the nodes' names.
            started_at: when they started, nanoseconds since 1970: epochs are of it.
            period_seconds: between two bodies of a node.
        """
        self._period = int(period_seconds * NANOS)
        self._twins = [node for node in fleet.nodes() if node.cluster == 1 and node.role in WHOLE]
        self._numbers = [Numbers(fleet, node, self._period) for node in self._twins]
        self._cluster = cluster
        self._prefix = prefix
        self._started_at = started_at

    def twin(self, number: int) -> Node:
        """Return the node whose numbers a node tells."""
        return self._twins[number % len(self._twins)]

    def name(self, number: int) -> str:
        """Return a node's name, by which it sends."""
        return f"{self._prefix}-{number:06d}"

    def epoch(self, number: int) -> str:
        """Return the epoch under which a node counts."""
        return digits(32, self._started_at, self.name(number), "epoch")

    def views(self, number: int) -> list[View]:
        """Return a node's GPUs: where its twin's are, and by names of their own."""
        name = self.name(number)
        return [
            msgspec.structs.replace(gpu.view, uuid=f"GPU-{uuid_of(name, gpu.number)}") for gpu in self.twin(number).gpus
        ]

    def prepare(self, number: int, epoch: str | None = None) -> "Prepared":
        """Return a node whose bodies lie ready, to count under an epoch: its own unless told."""
        name = self.name(number)
        heartbeat = Heartbeat(interval_seconds=30, version=__version__, started_at=self._started_at)
        machine = Machine(name=name, machine_id=digits(32, name), boot_id=uuid_of(name, "boot"))
        head = (WIRE_VERSION, CATALOGUE_VERSION, self._cluster, name, epoch or self.epoch(number))
        return Prepared(
            _ARRAY + b"".join(map(_ENCODER.encode, head)),
            b"".join(map(_ENCODER.encode, (heartbeat, [machine], self.views(number)))),
            self._numbers[number % len(self._numbers)],
        )


class Prepared:
    """One node. It counts from 1, and is heard of with every body."""

    __slots__ = ("_head", "_numbers", "_who", "made")

    def __init__(self, head: bytes, who: bytes, numbers: Numbers) -> None:
        """Take the bytes before the numbers, those between them and the samples, and what the samples are."""
        self._head = head
        self._who = who
        self._numbers = numbers
        self.made = 0

    def next_body(self, at: int, *, packed: bool = True) -> bytes:
        """Return the next body, sent at an instant; `packed` with zstd, as an agent does."""
        self.made += 1
        numbers = _NUMBERS.pack(_UINT64, self.made, _UINT64, at)
        message = b"".join((self._head, numbers, self._who, self._numbers.at(at), _NOTHING))
        return compress(message) if packed else message


def columns(fleet: Fleet, node: Node, at: int) -> tuple[list[str], list[list[Cell]], list[list[WireAbsence]]]:
    """Return names, one column each, and one set of absences a GPU of what a node's GPUs say."""
    booted_at = fleet.booted_at(node, at)
    every = [gpu_fast(gpu, at, booted_at, fleet.strain(node, gpu, at)) for gpu in node.gpus]
    names = list(every[0])
    found: list[list[Cell]] = [
        [None if isinstance(value := said[name], Absent) else value for said in every] for name in names
    ]
    absences = [
        [
            WireAbsence(name, value.reason, value.detail)
            for name, value in sorted(said.items())
            if isinstance(value, Absent)
        ]
        for said in every
    ]
    return names, found, absences


def _content(fleet: Fleet, node: Node, at: int) -> bytes:
    names, found, absences = columns(fleet, node, at)
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
    """Return where a set of absences stands in the list, which is made longer by a new one."""
    if not absences:
        return -1
    if absences not in sets:
        sets.append(absences)
    return sets.index(absences)
