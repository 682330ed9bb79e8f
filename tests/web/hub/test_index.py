"""Front page of the hub."""

import asyncio
import urllib.request
from pathlib import Path

from gpufleet.web.hub.access import ACCESS
from gpufleet.web.hub.index import LINKS, PAGE
from tests.support.waiting import PATIENCE
from tests.web.hub.site import running_site


async def test_front_page_links_are_valid(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:

        def fetch(path: str) -> tuple[int, str, str]:
            with urllib.request.urlopen(site.hub.url + path, timeout=20 * PATIENCE) as answer:
                return answer.status, answer.headers["Content-Type"], answer.headers.get("Content-Security-Policy", "")

        status, kind, policy = await asyncio.to_thread(fetch, "/")
        assert (status, kind.partition(";")[0]) == (200, "text/html")
        assert "default-src 'none'" in policy
        for path, _ in LINKS:
            assert f'href="{path}"' in PAGE
            assert (await asyncio.to_thread(fetch, path))[0] == 200
            assert ("GET", path) in ACCESS
