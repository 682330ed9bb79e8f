"""`gpufleet query` and `gpufleet allocation` against a running hub, and against none."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.batches import body
from tests.support.processes import free_port
from tests.web.hub.site import Site, now, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        await site.post(body(1, now(), last_error="[red]the driver's\x1b words[/red]"), body(3, now()))
        yield site


async def run(*arguments: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "gpufleet.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.returncode, done.stdout, done.stderr


async def test_an_allocation_from_the_shell(site: Site) -> None:
    hub = ("--hub", site.hub.url)
    put = ("allocation", "put", "a", "--kind", "bare_metal", "--target", "node-a", "--team", "blue", *hub)
    code, out, _ = await run(*put)
    assert (code, json.loads(out)["generation"]) == (0, 1)
    await site.post(body(4, now()))
    code, out, _ = await run("query", "allocation", "a", *hub)
    assert code == 0
    assert "source host_local_probe" in out
    code, table, _ = await run("query", "allocations", *hub)
    assert code == 0
    assert table.split("\n")[1].split()[:5] == ["a", "bare_metal", "local", "node-a", "blue"]
    assert "GPUs reporting: 2 of 2 devices" in out
    assert "timeout" in out  # the temperature's reason stands where its value would
    code, out, _ = await run("query", "series", "a", "gpu_power_watts", "--step", "1s", *hub)
    assert code == 0
    assert "gpu_power_watts of local/m-" in out
    assert "100 W" in out
    code, out, _ = await run("allocation", "close", "a", *hub)
    assert (code, "closed_at" in json.loads(out)) == (0, True)
    code, _, err = await run(*put)
    assert code == 1
    assert "was closed" in err


async def test_lists_from_the_shell(site: Site) -> None:
    hub = ("--hub", site.hub.url)
    code, out, _ = await run("query", "nodes", *hub)
    assert code == 0
    assert "node-a" in out
    assert "2 of 2" in out
    assert "\x1b" not in out
    assert "ago" in out
    for what, words in (("machines", "m-"), ("gpus", "GPU-1"), ("senders", "0.1.0")):
        code, out, _ = await run("query", what, *hub)
        assert code == 0
        assert words in out
    code, out, _ = await run("query", "senders", "--json", *hub)
    assert (code, json.loads(out)[0]["missing"]) == (0, 1)


async def test_nobody_there_and_bad_usage() -> None:
    code, _, err = await run("query", "nodes", "--hub", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert "cannot be asked" in err
    assert (await run("query", "nodes", "--frobnicate"))[0] == 2
    assert (await run("allocation", "put", "a", "--kind", "mainframe", "--target", "x"))[0] == 2
    assert (await run("allocation", "put", "a", "--kind", "slurm_job", "--target", "1", "--valid-to", "soon"))[0] == 2


async def test_what_is_not_there_is_said_in_the_hub_s_words(site: Site) -> None:
    code, _, err = await run("query", "allocation", "none", "--hub", site.hub.url)
    assert code == 1
    assert "there is no allocation 'none'" in err
