"""Cost of a simulated node for the load generator: as a full agent, and by the light client.

Method: one process, no sockets. 120 nodes of three clusters collect repeatedly, and each batch is encoded, compressed
and numbered like an agent's batch. 25,000 nodes of the light client make one body per period. The processor time per
body is reported.
"""

import sys
import time
from collections.abc import Callable

from benchmarks.table import Table
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming, create_agents
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.load_generator import LoadGenerator

START = 1_795_000_000 * NANOS
ROUNDS, LIGHT_NODES, TWINS, PERIOD_SECONDS = 6, 25_000, 1_500, 15


def cost_per_body(make: Callable[[int], list[bytes]]) -> tuple[float, float]:
    """Return microseconds and bytes per body. The first round is not counted."""
    make(0)
    began, count, size = time.process_time(), 0, 0
    for number in range(1, ROUNDS):
        bodies = make(number)
        count, size = count + len(bodies), size + sum(map(len, bodies))
    return (time.process_time() - began) / count * 1e6, size / count


def main() -> int:
    """Run and print."""
    agents = create_agents(Fleet(FleetSpec(clusters=3, nodes=40)), AgentTiming(start=START))

    def full(_: int) -> list[bytes]:
        return [agent.take().content for agent in agents if agent.collect()]

    fleet = Fleet(FleetSpec(nodes=TWINS))
    load_generator = LoadGenerator(
        fleet, cluster="local", prefix="light", started_at=START, period_seconds=PERIOD_SECONDS
    )
    nodes = [load_generator.prepare(number) for number in range(LIGHT_NODES)]

    def light(number: int, *, packed: bool = True) -> list[bytes]:
        at = START + number * PERIOD_SECONDS * NANOS
        return [node.next_body(at, packed=packed) for node in nodes]

    table = Table("A node of the simulated fleet, eight GPUs of 40 readings", "client", "us/body", "bytes")
    for name, make in (
        ("full agents", full),
        ("light client", light),
        ("light client, not compressed", lambda number: light(number + ROUNDS, packed=False)),
    ):
        us, size = cost_per_body(make)
        table.row(name, f"{us:.0f}", f"{size:.0f}")
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
