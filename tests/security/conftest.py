from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.security.guarded import Guarded, guarded


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded(tmp_path) as site:
        yield site
