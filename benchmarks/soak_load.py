"""Senders of a soak run: light client of the simulated fleet, and its acknowledged batches.

One process simulates all nodes. Each node has its own sender, epoch and sequence, and posts once in `PERIOD_SECONDS`.
Batches are posted in bundles, evenly over the period, and each node always posts to the same relay. The load is open: a
slow relay does not slow the fleet down but makes it late, which is reported.
"""

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Sequence

from gpufleet.delivery.post import HubAnswer, HubClient, HubVerdict
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.load_generator import LoadGenerator
from gpufleet.simulate.fleet.values import gpu_activity, gpu_fast

GPUS_PER_NODE = 8
PERIOD_SECONDS = 15.0
PERIOD_NS = int(PERIOD_SECONDS * NANOS)
BUNDLE = 64
TWINS = 1_500
"""Nodes of the simulated fleet. Values are computed once per period and node, and many senders report them."""

HUNG_EVERY = 100
"""One node in `HUNG_EVERY` has a hung GPU, so that absent values are part of the load."""

IN_FLIGHT = 16
"""Maximum number of concurrent posts. Further bundles wait and are late."""

RETRY_SECONDS = 0.5


@functools.cache
def fleet() -> Fleet:
    """Return the fleet whose values are reported. In some nodes the driver hangs on one GPU."""
    hung = [
        FleetFault(kind=FaultKind.GPU_HUNG, begin=1, end=2**62, node=node) for node in range(1, TWINS + 1, HUNG_EVERY)
    ]
    return Fleet(FleetSpec(nodes=TWINS, faults=tuple(hung)))


@functools.cache
def load_generator() -> LoadGenerator:
    """Return the generator of all senders."""
    return LoadGenerator(
        fleet(), cluster="local", prefix="soak", started_at=time.time_ns(), period_seconds=PERIOD_SECONDS
    )


def row_of(node: int, gpu: int, at: int) -> tuple[Value, ...]:
    """Return a GPU's values in the order of `METRICS` for the period of an instant. Hung drivers are ignored."""
    return tuple(_values(load_generator().twin(node).number, gpu, at // PERIOD_NS * PERIOD_NS).values())


@functools.lru_cache(maxsize=1 << 15)
def _values(number: int, gpu: int, at: int) -> dict[str, Value]:
    twin = fleet().node(1, number)
    device, booted_at = twin.gpus[gpu], fleet().booted_at(twin, at)
    readings = gpu_fast(device, at, booted_at, gpu_activity(device, at, booted_at))
    return {name: value for name, value in readings.items() if not isinstance(value, Absent)}


METRICS = [CATALOGUE[name] for name in _values(1, 0, PERIOD_NS)]
"""The 39 metrics with a value in every GPU sample. The video encoder is absent: these chips have none."""

VALUES = len(METRICS)


class Node:
    """Node of the load: its identity and bodies."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = secrets.token_hex(16)
        self.acknowledged = 0
        self._bodies = load_generator().prepare(number, self.epoch)

    @property
    def made(self) -> int:
        """Number of bodies so far."""
        return self._bodies.made

    def next_body(self, now: int) -> bytes:
        """Return the next batch of this node: a sample of every GPU, measured at the start of the period."""
        return self._bodies.next_body(now)


class Load:
    """Load that posts for all nodes until stopped.

    Attributes:
        refused: bodies that a relay rejected; must stay 0.
        retried: bodies that had to be posted again.
        late_seconds: maximum delay of a bundle since the attribute was reset.
    """

    def __init__(self, gpus: int, relays: Sequence[str]) -> None:
        self.nodes = [Node(number) for number in range(-(-gpus // GPUS_PER_NODE))]
        self.refused = 0
        self.retried = 0
        self.late_seconds = 0.0
        self._relays = relays
        self._stop = asyncio.Event()

    @property
    def acknowledged(self) -> int:
        """Number of batches acknowledged by relays."""
        return sum(node.acknowledged for node in self.nodes)

    def stop(self) -> None:
        """Make no further batches. `run` returns when all existing batches are acknowledged."""
        self._stop.set()

    async def run(self) -> None:
        """Post each bundle at its due time."""
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
                    case HubVerdict.ACCEPTED:
                        node.acknowledged += 1
                    case HubVerdict.REJECTED:
                        self.refused += 1
                    case HubVerdict.RETRY:
                        later.append(node)
            left = later
            self.retried += len(left)
            if left:
                await asyncio.sleep(_pause(answers))


def _pause(answers: Sequence[HubAnswer]) -> float:
    return max((answer.retry_after or RETRY_SECONDS for answer in answers), default=RETRY_SECONDS)
