"""The senders of a million GPUs: one process that stands for 125,000 nodes, and for the relays in front of the hub.

`python -m benchmarks.million_load PORT NODES`: reads orders from standard input, one JSON object a line, and answers
each with one. It is the light client of the simulated fleet over connections that cost little (`light_http.py`), in a
process of its own so that its processor time can be reported separately.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec
import uvloop

from benchmarks.light_http import Answered, Connection
from benchmarks.soak_load import PERIOD_SECONDS, fleet
from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, BundleAnswer, pack
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.prepared import LoadGenerator, PreparedSender

NODES_A_CLUSTER = 7_813
"""16 clusters of them are a million GPUs: each has fewer senders than a hub takes of one cluster by default."""

BUNDLE = 256
"""Batches of one post, as of a relay (`hub/relay/forwarding.py`)."""

CONNECTIONS = 16
"""Posts at once: those of two relays."""

AGAIN_SECONDS = 0.5

_ANSWER = msgspec.json.Decoder(BundleAnswer)


class Order(msgspec.Struct, kw_only=True):
    """Order of a load: each of the first `nodes` nodes posts once in a period, for so many seconds of that plan.

    Attributes:
        nodes: how many.
        seconds: of the plan.
        bundle: batches of one post; 1 means node by node.
        give_up: seconds after which no post is begun, however much of the plan is left.
    """

    nodes: int
    seconds: float = PERIOD_SECONDS
    bundle: int = BUNDLE
    give_up: float = 600.0


class Done(msgspec.Struct, kw_only=True):
    """Result of an order.

    Attributes:
        acknowledged: batches that the hub has.
        refused: those that it will not take; must be 0.
        again: those that were turned away, and posted once more.
        seconds: until the last was acknowledged.
        late: how far behind its plan the newest post began.
        cpu: processor seconds that this process took for it.
    """

    acknowledged: int = 0
    refused: int = 0
    again: int = 0
    seconds: float = 0.0
    late: float = 0.0
    cpu: float = 0.0


def clusters(nodes: int) -> list[str]:
    """Return the ids of the clusters of so many nodes."""
    return [f"region-{number + 1:02d}" for number in range(-(-nodes // NODES_A_CLUSTER))]


def node_name(number: int) -> str:
    """Return the name of a node, by which it sends too."""
    return f"node-{number:06d}"


def senders(nodes: int) -> list[PreparedSender]:
    """Return all of them, with a sender, epoch and sequence each."""
    started_at = time.time_ns()
    generators = [
        LoadGenerator(fleet(), cluster=one, prefix="node", started_at=started_at, period_seconds=PERIOD_SECONDS)
        for one in clusters(nodes)
    ]
    return [generators[number // NODES_A_CLUSTER].prepare(number) for number in range(nodes)]


class Load:
    """Carries out orders."""

    def __init__(self, port: int, nodes: Sequence[PreparedSender]) -> None:
        self._port = port
        self._nodes = nodes

    async def run(self, order: Order) -> Done:
        """Carry one out."""
        began, used = time.monotonic(), time.process_time()
        done, plan = Done(), self._plan(order)
        kind = BUNDLE_CONTENT_TYPE if order.bundle > 1 else CONTENT_TYPE
        async with asyncio.TaskGroup() as workers:
            for _ in range(CONNECTIONS):
                workers.create_task(self._work(Connection(self._port, "/v1/batches", kind), plan, order, done, began))
        done.seconds, done.cpu = time.monotonic() - began, time.process_time() - used
        return done

    def _plan(self, order: Order) -> Iterator[tuple[float, Sequence[PreparedSender]]]:
        """Go through second and senders of each post."""
        posts = -(-order.nodes // order.bundle)
        step = PERIOD_SECONDS / posts
        for turn in range(round(order.seconds / step)):
            first = turn % posts * order.bundle
            yield turn * step, self._nodes[first : min(first + order.bundle, order.nodes)]

    async def _work(
        self,
        connection: Connection,
        plan: Iterator[tuple[float, Sequence[PreparedSender]]],
        order: Order,
        done: Done,
        began: float,
    ) -> None:
        """Post over one connection, until the plan is at its end."""
        since = time.time_ns()
        for due, nodes in plan:
            late = time.monotonic() - began - due
            if late < 0:
                await asyncio.sleep(-late)
            elif time.monotonic() - began > order.give_up:
                break
            done.late = max(0.0, late)
            at = since + int(due * NANOS)
            left = [node.next_body(at) for node in nodes]
            while left:
                answered = await connection.post(pack(left) if order.bundle > 1 else left[0])
                left = _take(answered, left, done, alone=order.bundle == 1)
                if left:
                    done.again += len(left)
                    await asyncio.sleep(answered.retry_after or AGAIN_SECONDS)
        connection.close()


def _take(answered: Answered, bodies: list[bytes], done: Done, *, alone: bool) -> list[bytes]:
    """Count what became of bodies; return those that are to be posted again."""
    if answered.status in (0, 503):
        return bodies
    if answered.status != 200 or alone:
        done.acknowledged += answered.status == 200
        done.refused += len(bodies) if answered.status != 200 else 0
        return []
    statuses = [one.status for one in _ANSWER.decode(answered.content).answers]
    done.acknowledged += statuses.count(200)
    left = [body for body, status in zip(bodies, statuses, strict=True) if status == 503]
    done.refused += len(bodies) - len(left) - statuses.count(200)
    return left


def main() -> None:
    """Carry out orders until end of input."""
    port, nodes = int(sys.argv[1]), int(sys.argv[2])
    load = Load(port, senders(nodes))
    print("{}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            done = runner.run(load.run(msgspec.json.decode(line, type=Order)))
            print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main()
