"""Distribution of tests to the workers of pytest-xdist, and their order.

The unit of distribution is a test file, so that the fixtures of a module are created once. What `TOGETHER` lists is
distributed together, because its tests share fixtures that take seconds to create.
"""

import functools
import os

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.processes import Gpufleet

TOGETHER = {
    "tests/vm/": "vm",
    "tests/registry/": "registry",
    **dict.fromkeys(
        (
            *("tests/deploy/test_chart.py", "tests/deploy/test_roles.py", "tests/cluster/test_permissions.py"),
            *("tests/holders/kubernetes/test_contract.py", "tests/wiring/test_kubernetes.py"),
        ),
        "kube-apiserver",
    ),
}
"""Folders and files to the unit of tests that share a virtual machine, a database server or a kube-apiserver.

A second kube-apiserver would take 2 to 5 % of a processor even while it is idle.
"""

FIRST = (
    *("tests/crash", "tests/vm", "tests/e2e", "tests/security", "tests/relay", "tests/agent", "tests/deploy"),
    *("tests/doctor", "tests/benchmarks", "tests/stores", "tests/hub", "tests/cli", "tests/readers"),
)
"""Folders in start order: longest files first, so that the workers finish together."""


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Scheduler that distributes units in the order of collection."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """Return the unit of distribution that a test belongs to: its xdist group, folder or file."""
    path, _, test = nodeid.partition("::")
    _, at, group = test.rpartition("]")[2].rpartition("@")
    if at:
        return group
    return next((unit for start, unit in TOGETHER.items() if path.startswith(start)), path)


def rank(nodeid: str) -> int:
    """Return the position of a test's folder in `FIRST`; other folders come after these."""
    return _rank_of_file(nodeid.partition("::")[0])


@functools.cache
def _rank_of_file(path: str) -> int:
    return next((n for n, folder in enumerate(FIRST) if path.startswith(f"{folder}/")), len(FIRST))


def starts_daemons(item: pytest.Item) -> bool:
    """Return whether a test is in a module that starts agents, hubs or relays, which takes seconds."""
    return isinstance(item, pytest.Function) and getattr(item.module, "Gpufleet", None) is Gpufleet


def workers() -> int:
    """Return the number of workers for `-n auto`: twice the processors, because half of the tests wait."""
    return min(2 * len(os.sched_getaffinity(0)), 16)
