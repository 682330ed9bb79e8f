"""Rules about the fleet: processor time of one judgement of all rules.

Method: facts of a working fleet, 8 GPUs a machine, one sender a machine, 50 clusters. Core readings of some random GPUs
fail, others in each judgement, so that findings open and close. One thread; the first of `ROUNDS` judgements is not
counted. "Tables" copies the columns into the tables of facts. Filling the columns is not included.
"""

import sys
import time
from collections.abc import Mapping

import numpy as np

from benchmarks.table import Table
from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.inputs import INPUTS
from gpufleet.fleet.rules.judgement import judge
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.fleet.rules.tracker import Findings
from gpufleet.model.finding import RuleScope
from gpufleet.model.time import NANOS
from tests.support.fleet_facts import WORKING

CLUSTERS, GPUS_PER_MACHINE, ROUNDS = 50, 8, 8
START = 1_800_000_000 * NANOS


class Fleet:
    """Columns of a working fleet."""

    def __init__(self, gpus: int) -> None:
        machines = gpus // GPUS_PER_MACHINE
        names = [f"cluster-{number % CLUSTERS}/{number:08x}" for number in range(machines)]
        self.gpus = gpus
        self.keys = {
            RuleScope.HUB: ["hub"],
            RuleScope.CLUSTER: [f"cluster-{number}" for number in range(CLUSTERS)],
            RuleScope.MACHINE: names,
            RuleScope.SENDER: names,
            RuleScope.DEVICE: [f"{names[number // GPUS_PER_MACHINE]}/gpu/GPU-{number:032x}" for number in range(gpus)],
        }
        of_cluster = {RuleScope.CLUSTER: np.arange(machines) % CLUSTERS}
        self.parents: dict[RuleScope, Mapping[RuleScope, Column]] = {
            RuleScope.MACHINE: of_cluster,
            RuleScope.SENDER: {**of_cluster, RuleScope.MACHINE: np.arange(machines)},
            RuleScope.DEVICE: {RuleScope.MACHINE: np.arange(gpus) // GPUS_PER_MACHINE},
        }
        self.columns = {
            scope: {name: np.full(len(keys), float(WORKING.get(name, 0))) for name in INPUTS[scope]}
            for scope, keys in self.keys.items()
        }

    def facts(self) -> FleetFacts:
        """Return the facts of the fleet now."""
        tables = [
            FactTable(scope, keys, self.columns[scope], parents=self.parents.get(scope))
            for scope, keys in self.keys.items()
        ]
        return FleetFacts.of(*tables)


def measure(table: Table, gpus: int, share: float) -> None:
    """Add a row: judgements of a fleet with a fault on this share of its GPUs."""
    fleet, random = Fleet(gpus), np.random.default_rng(1)
    thresholds = Thresholds(RULES, {"gpu.metrics_missing": {"pending_seconds": 0, "closing_seconds": 0}})
    findings = Findings(RULES, thresholds)
    spent, transitions = np.zeros(3), 0
    for number in range(ROUNDS):
        fleet.columns[RuleScope.DEVICE]["failed_core_readings"] = (random.random(gpus) < share).astype(float)
        times = [time.process_time()]
        facts = fleet.facts()
        times.append(time.process_time())
        judgement = judge(facts, RULES, thresholds, START + number * 60 * NANOS)
        times.append(time.process_time())
        found = findings.update(judgement)
        times.append(time.process_time())
        if number:
            spent += np.diff(times)
            transitions += len(found)
    tables, judged, updated = (f"{1000 * seconds / (ROUNDS - 1):.0f} ms" for seconds in spent)
    total = f"{1000 * spent.sum() / (ROUNDS - 1):.0f} ms"
    table.row(f"{gpus:,}", f"{share:.1%}", f"{transitions // (ROUNDS - 1):,}", tables, judged, updated, total)


def main() -> int:
    """Print the table."""
    table = Table(
        f"Processor time of one judgement by {len(RULES)} rules",
        *("GPUs", "with a fault", "transitions", "tables", "verdicts", "findings", "total"),
    )
    for gpus in (25_000, 250_000):
        for share in (0.0, 0.001, 0.01):
            measure(table, gpus, share)
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
