from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.security.daemons import Daemon, running
from tests.security.guarded import Guarded, guarded


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded(tmp_path) as site:
        yield site


@pytest.fixture(scope="package")
def daemon_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, bool], Daemon]]:
    """Return a daemon by kind and TLS. Each is started once and must survive every test."""
    folder = tmp_path_factory.mktemp("daemons")
    started: dict[tuple[str, bool], Daemon] = {}
    with ExitStack() as stack:

        def of(kind: str, secure: bool) -> Daemon:
            if (kind, secure) not in started:
                at = folder / f"{kind}-{'tls' if secure else 'plain'}"
                started[kind, secure] = stack.enter_context(running(kind, at, secure=secure))
            return started[kind, secure]

        yield of


@pytest.fixture(
    params=[("hub", False), ("hub", True), ("agent", False), ("agent", True)],
    ids=lambda one: f"{one[0]}{'-tls' if one[1] else ''}",
)
def daemon(request: pytest.FixtureRequest, daemon_of: Callable[[str, bool], Daemon]) -> Daemon:
    return daemon_of(*request.param)


@pytest.fixture(params=["hub", "agent"])
def plain(request: pytest.FixtureRequest, daemon_of: Callable[[str, bool], Daemon]) -> Daemon:
    """Return a daemon without TLS, for tests of HTTP only."""
    return daemon_of(request.param, False)
