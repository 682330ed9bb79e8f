"""API servers for the tests of this folder: the fake always, a real kube-apiserver where its parts are."""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from tests.fakes.kube_api import ADMIN, write_kubeconfig
from tests.support.kube import GIVEN, ClusterUnderTest, KubeServer, tested_cluster

REAL = pytest.param("real", marks=[pytest.mark.system, pytest.mark.slow])
CLUSTERS = ["given"] if os.environ.get(GIVEN) else ["fake", REAL]


@pytest.fixture(params=CLUSTERS)
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, real_server: Callable[[], KubeServer]
) -> AsyncIterator[ClusterUnderTest]:
    """Return each kind of cluster."""
    async with tested_cluster(request.param, tmp_path, real_server) as started:
        yield started


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def handling(folder: Path, handle: Handler) -> AsyncIterator[Path]:
    """Run an HTTP server that answers each request with `handle`; return a kubeconfig for it."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield write_kubeconfig(folder / "kubeconfig", f"http://{host}:{port}", {"token": ADMIN})
    finally:
        await runner.cleanup()
