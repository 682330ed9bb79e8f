"""Fixtures for every test."""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.support import peers, scheduling
from tests.support.processes import Gpufleet

if TYPE_CHECKING:
    from tests.support.kube import KubeServer

# Tests start hundreds of processes. Without bytecode files, each would compile every module that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Workers of pytest-xdist set a width of 80 columns, which commands would inherit.
os.environ.pop("COLUMNS", None)

# Imports are most of the processor time of a daemon that runs for seconds.
Gpufleet.is_forked = True

# No deadline per example: a busy machine would fail tests at random.
settings.register_profile("ci", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("ci"), max_examples=1000)
settings.load_profile(os.environ.get("GPUFLEET_TEST_PROFILE", "ci"))


# Daemons and virtual machines of the tests have sessions of their own: fixtures stop them also after a SIGTERM.
signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    return scheduling.workers()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> scheduling.UnitScheduling:
    return scheduling.UnitScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and start the folders with the longest tests first."""
    for item in items:
        if scheduling.starts_daemons(item):
            item.add_marker("slow")
    items.sort(key=lambda item: scheduling.rank(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without garbage collection, and exempt their objects from later ones.

    The objects live as long as the process. Each later collection would visit all of them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


CAPTURE_DEPTH = 4
"""Depth of the folders of a test that are searched for captures."""


@pytest.fixture(autouse=True)
def _written_captures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Validate every benchmark capture that a test wrote, by whatever command, against the published schema."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is None:
        return
    for path, folders, files in os.walk(folder):
        if "SHA256SUMS" in files and os.path.isfile(os.path.join(path, "SHA256SUMS")):  # noqa: PTH113, PTH118 - fast
            from tests.support.benchmarks import validate_captures  # imports a validator, which few tests need

            validate_captures(Path(path))
        if path.count(os.sep) - str(folder).count(os.sep) >= CAPTURE_DEPTH:
            folders.clear()


@pytest.fixture(scope="session")
def peer() -> Callable[[str], Path]:
    """Return the path of a real program. Without it the test fails, or skips if skips are allowed."""

    def path_of(program: str) -> Path:
        path = peers.find(program)
        if path is None:
            message = f"{program} is not installed: run `make test`, or `python tests/support/peers.py fetch`"
            if os.environ.get("GPUFLEET_ALLOW_SKIPS") == "1":
                pytest.skip(message)
            pytest.fail(message)
        return path

    return path_of


@pytest.fixture(scope="session")
def real_server(
    tmp_path_factory: pytest.TempPathFactory, peer: Callable[[str], Path]
) -> "Iterator[Callable[[], KubeServer]]":
    """Return a function that returns the kube-apiserver of this session, started at the first call."""
    from tests.support.kube import PARTS, kube_server  # imports a client, which few tests need

    with contextlib.ExitStack() as stack:
        started: list[KubeServer] = []

        def server() -> "KubeServer":
            if not started:
                if not (PARTS / "kube-apiserver.zst").exists():
                    pytest.skip("no real kube-apiserver beside this checkout (shared/real/kube)")
                started.append(stack.enter_context(kube_server(tmp_path_factory.mktemp("kube"), peer("etcd"))))
            return started[0]

        yield server
