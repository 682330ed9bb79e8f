"""The senders of a soak: a made-up fleet that posts as agents do, and remembers what was acknowledged.

One process stands for all nodes. Each node has a sender, epoch and sequence of its own, and posts once in
`PERIOD_SECONDS`; what is due is posted in bundles, evenly over the period, each node always to the same relay. The load
is open: a slow relay does not slow the fleet, it makes it late, which is told.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence

from gpufleet import __version__
from gpufleet.codecs.batch import encode_wire
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION, Metric, Storage, Subject, ValueType
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire import WIRE_VERSION, Cell, SampleBlock, WireAbsence, WireBatch
from gpufleet.sending.post import Answer, HubClient, Verdict
from tests.fakes.fleet import gpu_values

GPUS_A_NODE = 8
PERIOD_SECONDS = 15.0
BUNDLE = 64
VALUES = 40
IN_FLIGHT = 16
"""Bundles that may be on their way at once; more that are due wait, and are late."""

AGAIN_SECONDS = 0.5
SILENT_EVERY = 100
"""Of every so many nodes one has a GPU whose power is not told: absences are part of the load."""


def chosen_metrics() -> list[Metric]:
    """Return the 40 metrics of a GPU that every sample has: core columns first, the rest from the tail."""
    plain = [one for one in CATALOGUE.values() if Subject.GPU in one.subjects and one.type is not ValueType.TEXT]
    return sorted((one for one in plain if not one.dims), key=lambda one: one.storage is not Storage.CORE)[:VALUES]


METRICS = chosen_metrics()
NAMES = [one.name for one in METRICS]
POWER = NAMES.index("gpu_power_watts")


def row_of(node: int, gpu: int, step: int) -> list[Cell]:
    """Return a GPU's values in the order of `METRICS`: the made-up fleet's, and the rest stands still."""
    values = gpu_values(node, gpu, step)
    row: list[Cell] = []
    for metric in METRICS:
        value = values.get(metric.name, metric.states[0] if metric.states else int(metric.low or 0) + 1)
        assert not isinstance(value, Absent)
        row.append(float(value) if metric.type is ValueType.FLOAT else value)
    return row


class Node:
    """One sender: its identity, and the bodies it makes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = secrets.token_hex(16)
        self.acknowledged = 0
        self.made = 0
        self._started_at = time.time_ns()
        self._machine = Machine(name=f"soak-{number:06d}", machine_id=f"{number + 1:032x}", boot_id=f"boot-{number}")
        self._views = [
            View(
                kind=ViewKind.GPU,
                side=Side.HOST,
                uuid=f"GPU-{number:08x}-0000-4000-8000-{gpu:012x}",
                pci_address=f"0000:{0x10 + gpu:02x}:00.0",
                index=gpu,
            )
            for gpu in range(GPUS_A_NODE)
        ]

    def next_body(self, now: int) -> bytes:
        """Return the next batch of this node: a sample of every GPU, measured now."""
        step = self.made
        self.made += 1
        rows = [row_of(self.number, gpu, step) for gpu in range(GPUS_A_NODE)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        absence, absences = [-1] * GPUS_A_NODE, []
        if self.number % SILENT_EVERY == 0:
            columns[POWER][0], absence[0] = None, 0
            absences = [[WireAbsence("gpu_power_watts", Reason.TIMEOUT, "nvmlDeviceGetPowerUsage")]]
        return encode_wire(
            WireBatch(
                version=WIRE_VERSION,
                catalogue=CATALOGUE_VERSION,
                cluster="local",
                sender=self._machine.name,
                epoch=self.epoch,
                seq=self.made,
                sent_at=now,
                heartbeat=Heartbeat(interval_seconds=30, version=__version__, started_at=self._started_at),
                machines=[self._machine],
                views=self._views,
                absences=absences,
                samples=[
                    SampleBlock(
                        reader="nvml",
                        lane="fast",
                        provenance="host_local_probe",
                        metrics=NAMES,
                        machine=[0] * GPUS_A_NODE,
                        view=list(range(GPUS_A_NODE)),
                        measured_at=[now] * GPUS_A_NODE,
                        driver_session=[1] * GPUS_A_NODE,
                        absence=absence,
                        columns=columns,
                    )
                ],
            )
        )


class Load:
    """Posts for all nodes until stopped.

    Attributes:
        refused: bodies that a relay will never take; must stay 0.
        again: bodies that had to be posted again.
        late_seconds: how far behind the plan the newest bundle began, at worst since last asked.
    """

    def __init__(self, gpus: int, relays: Sequence[str]) -> None:
        self.nodes = [Node(number) for number in range(-(-gpus // GPUS_A_NODE))]
        self.refused = 0
        self.again = 0
        self.late_seconds = 0.0
        self._relays = relays
        self._stop = asyncio.Event()

    @property
    def acknowledged(self) -> int:
        """Batches that a relay has taken."""
        return sum(node.acknowledged for node in self.nodes)

    def stop(self) -> None:
        """Make nothing new; `run` returns when all that was made is acknowledged."""
        self._stop.set()

    async def run(self) -> None:
        """Post each bundle when it is due."""
        bundles = [self.nodes[at : at + BUNDLE] for at in range(0, len(self.nodes), BUNDLE)]
        clients = [
            HubClient(url, name="soak", timeout_seconds=60, connections=IN_FLIGHT // len(self._relays) or 1)
            for url in self._relays
        ]
        slots = asyncio.Semaphore(IN_FLIGHT)
        began, turn = time.monotonic(), 0
        async with contextlib.AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            posts = await stack.enter_async_context(asyncio.TaskGroup())  # ends before the clients close
            while not self._stop.is_set():
                due = began + turn * PERIOD_SECONDS / len(bundles)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await slots.acquire()
                self.late_seconds = max(self.late_seconds, time.monotonic() - due)
                which = turn % len(bundles)
                bodies = {node: node.next_body(time.time_ns()) for node in bundles[which]}
                post = posts.create_task(self._post(clients[which % len(clients)], bodies))
                post.add_done_callback(lambda _: slots.release())
                turn += 1

    async def _post(self, client: HubClient, bodies: dict[Node, bytes]) -> None:
        left = list(bodies)
        while left:
            answers = await client.post_bundle([bodies[node] for node in left])
            later: list[Node] = []
            for node, answer in zip(left, answers, strict=True):
                match answer.verdict:
                    case Verdict.TAKEN:
                        node.acknowledged += 1
                    case Verdict.REFUSED:
                        self.refused += 1
                    case Verdict.LATER:
                        later.append(node)
            left = later
            self.again += len(left)
            if left:
                await asyncio.sleep(_pause(answers))


def _pause(answers: Sequence[Answer]) -> float:
    return max((answer.retry_after or AGAIN_SECONDS for answer in answers), default=AGAIN_SECONDS)
