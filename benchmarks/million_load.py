"""Senders of a million GPUs: one process that simulates 125,000 nodes and the relays in front of the hub.

`python -m benchmarks.million_load PORT NODES` reads orders from standard input, one JSON object per line, and answers
each with one JSON object. It is the light client of the simulated fleet over cheap connections (`light_http.py`). It
runs in a separate process, so that its processor time can be reported separately.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec
import uvloop

from benchmarks.light_http import Connection, Response
from benchmarks.soak_load import PERIOD_SECONDS, fleet
from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, BundleAnswer, pack
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.load_generator import LoadGenerator, PreparedSender

NODES_PER_CLUSTER = 7_813
"""Nodes of each of 16 clusters, a million GPUs in total. A hub accepts more senders per cluster by default."""

BUNDLE = 256
"""Batches per post, like a relay (`hub/relay/forwarding.py`)."""

CONNECTIONS = 16
"""Concurrent posts of two relays."""

RETRY_SECONDS = 0.5

_ANSWER = msgspec.json.Decoder(BundleAnswer)


class Order(msgspec.Struct, kw_only=True):
    """Order of a load: each of the first `nodes` nodes posts once per period.

    Attributes:
        nodes: number of nodes.
        seconds: duration of the plan.
        bundle: batches per post; 1 means node by node.
        give_up: seconds after which no post is started, even if the plan is not finished.
    """

    nodes: int
    seconds: float = PERIOD_SECONDS
    bundle: int = BUNDLE
    give_up: float = 600.0


class Done(msgspec.Struct, kw_only=True):
    """Result of an order.

    Attributes:
        acknowledged: batches that the hub acknowledged.
        refused: batches that the hub rejected; must be 0.
        retried: batches that were posted again after a 503 or a broken connection.
        seconds: time until the last acknowledgement.
        late: delay of the newest post behind the plan.
        cpu: processor seconds of this process.
    """

    acknowledged: int = 0
    refused: int = 0
    retried: int = 0
    seconds: float = 0.0
    late: float = 0.0
    cpu: float = 0.0


def clusters(nodes: int) -> list[str]:
    """Return the ids of the clusters for a number of nodes."""
    return [f"region-{number + 1:02d}" for number in range(-(-nodes // NODES_PER_CLUSTER))]


def node_name(number: int) -> str:
    """Return the name of a node, which is also its sender name."""
    return f"node-{number:06d}"


def senders(nodes: int) -> list[PreparedSender]:
    """Return the senders of all nodes, each with its own epoch and sequence."""
    started_at = time.time_ns()
    generators = [
        LoadGenerator(fleet(), cluster=one, prefix="node", started_at=started_at, period_seconds=PERIOD_SECONDS)
        for one in clusters(nodes)
    ]
    return [generators[number // NODES_PER_CLUSTER].prepare(number) for number in range(nodes)]


class Load:
    """Load that executes orders."""

    def __init__(self, port: int, nodes: Sequence[PreparedSender]) -> None:
        self._port = port
        self._nodes = nodes

    async def run(self, order: Order) -> Done:
        """Execute an order."""
        began, used = time.monotonic(), time.process_time()
        done, plan = Done(), self._plan(order)
        kind = BUNDLE_CONTENT_TYPE if order.bundle > 1 else CONTENT_TYPE
        async with asyncio.TaskGroup() as workers:
            for _ in range(CONNECTIONS):
                workers.create_task(self._work(Connection(self._port, "/v1/batches", kind), plan, order, done, began))
        done.seconds, done.cpu = time.monotonic() - began, time.process_time() - used
        return done

    def _plan(self, order: Order) -> Iterator[tuple[float, Sequence[PreparedSender]]]:
        """Yield due second and senders of each post."""
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
        """Post over one connection until the end of the plan."""
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
                response = await connection.post(pack(left) if order.bundle > 1 else left[0])
                left = _count(response, left, done, alone=order.bundle == 1)
                if left:
                    done.retried += len(left)
                    await asyncio.sleep(response.retry_after or RETRY_SECONDS)
        connection.close()


def _count(response: Response, bodies: list[bytes], done: Done, *, alone: bool) -> list[bytes]:
    """Count the results of a post. Return the bodies to post again."""
    if response.status in (0, 503):
        return bodies
    if response.status != 200 or alone:
        done.acknowledged += response.status == 200
        done.refused += len(bodies) if response.status != 200 else 0
        return []
    statuses = [one.status for one in _ANSWER.decode(response.content).answers]
    done.acknowledged += statuses.count(200)
    left = [body for body, status in zip(bodies, statuses, strict=True) if status == 503]
    done.refused += len(bodies) - len(left) - statuses.count(200)
    return left


def main() -> None:
    """Execute orders until the end of the input."""
    port, nodes = int(sys.argv[1]), int(sys.argv[2])
    load = Load(port, senders(nodes))
    print("{}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            done = runner.run(load.run(msgspec.json.decode(line, type=Order)))
            print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main()
