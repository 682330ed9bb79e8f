"""API servers for the tests of this folder: the fake always, a real kube-apiserver where its parts are."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

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
