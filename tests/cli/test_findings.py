"""`gpufleet findings` and `gpufleet query findings` with a running hub."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.model.finding import Finding, Severity
from tests.cli.test_query import run
from tests.fakes.batches import body
from tests.support.findings import make_finding
from tests.support.waiting import PATIENCE
from tests.web.hub.site import Site, now, running_site
from tests.web.hub.test_findings import DISABLED_EVALUATION, save

SECOND = 10**9


class FindingSite:
    """Running hub with two open findings and a closed one."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder
        at = now() - 3600 * SECOND
        self.lost = make_finding("gpu.lost", "local/m-1/gpu/GPU-1", at, severity=Severity.CRITICAL)
        self.missing = make_finding("node.missing", "local/m-1", at + 1, evidence={"last_error": "\x1b[2Jx"})
        self.closed = make_finding("hub.network", "", at + 2, closed_at=at + 60 * SECOND)
        save(folder, self.lost, self.missing, self.closed)

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command with the URL of the hub."""
        return await run(*arguments, "--hub", self.site.hub.url)

    async def document(self, found: Finding) -> dict[str, object]:
        """Return a finding as the API has it."""
        code, out, err = await self.run("findings", "show", found.id, "--json")
        assert code == 0, err
        document: dict[str, object] = json.loads(out)
        return document


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[FindingSite]:
    async with running_site(tmp_path, findings=DISABLED_EVALUATION) as site:
        yield FindingSite(site, tmp_path)


async def ids(hub: FindingSite, *options: str) -> list[str]:
    code, out, err = await hub.run("query", "findings", "--rule", "gpu.lost", "--rule", "node.missing", *options)
    assert code == 0, err
    titles, *rows = [line.split("\t") for line in out.splitlines()]
    return [row[titles.index("id")] for row in rows]


async def test_open_findings_are_listed_by_default(hub: FindingSite) -> None:
    assert await ids(hub) == [hub.missing.id, hub.lost.id]
    assert await ids(hub, "--severity", "critical") == [hub.lost.id]
    assert await ids(hub, "--cluster", "local", "--since", "10m") == [hub.missing.id, hub.lost.id]
    assert await ids(hub, "--state", "acknowledged") == []
    assert await ids(hub, "--rule", "hub.network", "--state", "closed") == [hub.closed.id]
    code, out, err = await hub.run("query", "findings", "--rule", "gpu.lost", "--json")
    assert (code, [one["id"] for one in json.loads(out)["items"]]) == (0, [hub.lost.id]), err
    assert json.loads(out).keys() == {"at", "evaluation", "items", "next"}
    assert (await hub.run("query", "findings", "--rule", "gpu.lots"))[0] == 1
    assert (await hub.run("query", "findings", "--severity", "fatal"))[0] == 2
    code, _, err = await hub.run("query", "findings", "--cluster", "locl")
    assert (code, "did you mean local?" in err) == (1, True)


async def test_finding_is_acknowledged_by_the_first_digits_of_its_id(hub: FindingSite) -> None:
    code, out, err = await hub.run("findings", "ack", hub.lost.id[:6], "--for", "2h", "--note", "in repair")
    assert code == 0, err
    assert re.search(r"gpu.lost .*GPU-1: until \S+Z by local: in repair", out)
    assert (await hub.document(hub.lost))["acknowledged"] is True
    assert await ids(hub, "--state", "acknowledged") == [hub.lost.id]
    code, out, _ = await hub.run("findings", "unack", hub.lost.id[:6])
    assert (code, out.strip().endswith("not acknowledged")) == (0, True)
    for wrong, status in ((("xyz",), 1), (("ffff",), 1), ((hub.closed.id,), 1), ((hub.lost.id, "--for", "soon"), 2)):
        code, out, _ = await hub.run("findings", "ack", *wrong)
        assert (code, out) == (status, ""), wrong


async def test_finding_is_shown_with_evidence_and_timeline(hub: FindingSite) -> None:
    code, out, err = await hub.run("findings", "show", hub.closed.id[:8])
    assert code == 0, err
    assert re.search(r"^rule\thub\.network ", out, re.MULTILINE)
    assert re.search(r"\tclosed\twarning\thealthy\t", out)
    code, out, _ = await hub.run("findings", "show", hub.missing.id)
    assert (code, "\x1b" in out, "evidence last_error" in out) == (0, False, True)


async def test_silence_is_added_listed_and_ended(hub: FindingSite) -> None:
    assert (await hub.run("findings", "silence", "--for", "1h"))[0] == 2
    for wrong in (
        ("--subject", "local", "--machine", "x"),
        ("--scope", "machine", "--machine", "x"),
        ("--subject", "local/m-1"),
        ("--subject", "local", "--scope", "gpu"),
    ):
        assert (await hub.run("findings", "silence", "--for", "1h", *wrong))[0] == 2, wrong
    code, out, err = await hub.run("findings", "silence", "--rule", "gpu.lost", "--subject", "local/m-1", "--for", "2h")
    assert code == 0, err
    id_ = out.split()[1]
    assert (await hub.document(hub.lost))["silenced_until"] is not None
    assert (await hub.document(hub.missing))["silenced_until"] is None
    _, out, _ = await hub.run("findings", "silences")
    assert out.splitlines()[1].split("\t")[:3] == [id_, "gpu.lost", "local/m-1"]
    assert (await hub.run("findings", "unsilence", id_))[0] == 0
    assert (await hub.run("findings", "silences", "--json"))[1].strip() == "[]"
    assert (await hub.run("findings", "unsilence", "x"))[0] == 1


async def test_silence_of_a_machine_excludes_senders_of_that_name(hub: FindingSite) -> None:
    await hub.site.post(body(1, now()))
    (machine,) = (await hub.site.request("/v1/machines"))[1]["items"]
    key, at = f"local/{machine['id']}", now() - 60 * SECOND
    found = [make_finding(*one, at) for one in (("gpu.lost", f"{key}/gpu/GPU-1"), ("node.missing", key))]
    sender = make_finding("sender.clock_skew", key, at)
    save(hub.folder, *found, sender)
    assert (await hub.run("findings", "silence", "--for", "1h", "--machine", machine["id"]))[0] == 0
    _, out, _ = await hub.run("findings", "silences")
    assert out.splitlines()[1].split("\t")[2:4] == [key, "machine, device"]
    assert [bool((await hub.document(one))["silenced_until"]) for one in (*found, sender)] == [True, True, False]


async def test_watch_prints_openings_until_interrupted(hub: FindingSite) -> None:
    command = [
        sys.executable,
        "-m",
        "gpufleet.cli.main",
        "findings",
        "watch",
        "--every",
        "1s",
        "--rule",
        "node.missing",
    ]
    process = await asyncio.create_subprocess_exec(
        *command, "--hub", hub.site.hub.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(30 * PATIENCE):
        assert b"open and unknown findings: 1" in await process.stderr.readline()
        opened = make_finding("node.missing", "local/m-2", now())
        save(hub.folder, opened)
        line = (await process.stdout.readline()).decode()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    assert line.split()[2:] == ["opened", "warning", "node.missing", "m-2", "in", "local", opened.id[:8]]
    assert b"Traceback" not in await process.stderr.read()
