"""docs/architecture.md: its figures are those of code and measurements; the two data walks name every file."""

import asyncio
import re
import sys
import threading
import urllib.request
from pathlib import Path
from types import FrameType

import pytest

from gpufleet.agent.agent import BATCH_SECONDS
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1
from gpufleet.config.agent import AgentConfig, LanesConfig
from gpufleet.config.hub import HubConfig
from gpufleet.delivery.pacing import FIRST_SECONDS, MAX_SECONDS
from gpufleet.fleet.contract.records import CheckPlace, Requirement
from gpufleet.fleet.readings import LONGEST_SECONDS
from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.liveness import limits
from gpufleet.wiring.contract import load_contract
from tests.support.waiting import PATIENCE, wait_until_async
from tests.web.hub.site import Site, now, running_site

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpufleet"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STAGES = ("hub/imports/", "hub/receive/", "codecs/", "dialects/", "spool/")
"""Packages between the receiver and the log."""

BESIDE = {
    "codecs/remote_write/encode.py": "the test's own request",
    "hub/receive/limits.py": "budget of all bodies, a part of reading them",
    "hub/receive/decode_cache.py": "after the log",
    "spool/acknowledgements.py": "the flusher's",
}
"""Files of `STAGES` that are entered beside the walk."""


def documented(title: str) -> set[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (section,) = re.findall(rf"^## {title}.*?$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([\w/]+\.py)`", section))


QUESTIONS = (
    "What is collected at node level, at cluster level and centrally?",
    "Which components run on each node?",
    "Which components run in each cluster?",
    "Pull or push?",
    "How often, and how late?",
    "How is data normalised across clusters?",
    "How is data validated and monitored?",
    "How are broken collectors and stale data detected?",
)


def test_eight_questions_are_headings_with_a_short_answer() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    rows = dict(re.findall(r"^\| \[([^\]]+)\]\(#[^)]*\) \| (.+) \|$", page, re.MULTILINE))
    assert tuple(rows) == QUESTIONS
    assert tuple(one for one in headings if one in QUESTIONS) == QUESTIONS
    assert {
        *("Failure modes, and what is lost", "Capacity", "Rejected alternatives", "Deployment models"),
        *("Known gaps", "Assumptions and risks", "Security and network"),
    } <= set(headings)


def test_counts_of_rules_and_items_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    items = load_contract().items_on(CheckPlace.HUB)
    musts = sum(one.level is Requirement.MUST for one in items)
    assert f"{len(items)} items about each cluster at the hub, {musts} of them a MUST" in page
    assert set(re.findall(r"\b(\d+) (?:\[rules about the fleet|rules and the \[contract)", page)) == {str(len(RULES))}


def test_constants_of_the_tables_are_in_their_files() -> None:
    pairs = re.findall(r"((?:`\w+`(?:, )?)+): `([\w/]+\.py)`", PAGE)
    assert len(pairs) > 20
    for names, file in pairs:
        text = (SOURCE / file).read_text()
        missing = {one for one in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{one}\b", text)}
        assert missing == set(), file


AGENT, HUB, LANES = AgentConfig(), HubConfig(), LanesConfig()
HEARTBEAT, SPOOL, DAYS = AGENT.hub.heartbeat_seconds, AGENT.spool, HUB.retention
LATE, LATE_GPU = 2 * HEARTBEAT + limits.SLACK_SECONDS, 2 * LANES.fast + limits.SLACK_SECONDS
STALE, LOST = limits.MIN_STALE_SECONDS / 60, limits.LOST_SECONDS / 60
DAY, MIB = 86_400, 1 << 20


@pytest.mark.parametrize(
    "figure",
    [
        f"late after {LATE:g} s, stale after {STALE:g} min, lost after {LOST:g} min",
        f"| {LATE:g} s, {STALE:g} min, {LOST:g} min |",
        f"view `late`; cluster `partial` | {LATE_GPU:g} s; {HUB.stale_after_seconds:g} s",
        f"after at most about {LANES.fast + BATCH_SECONDS + HUB.flush.interval_seconds:g} s",
        f"| measure, fast lane | {LANES.fast:g} s | pass {AGENT.readers.nvml.timeout_seconds:g} s",
        f"| slow, static, event lane | {LANES.slow:g}, {LANES.static:g}, {LANES.event:g} s |",
        f"| heartbeat | {HEARTBEAT:g} s |",
        f"request {AGENT.hub.timeout_seconds:g} s; retry after {FIRST_SECONDS / 2:g} to {MAX_SECONDS:g} s",
        f"| relay | at once | request {HUB.relay.timeout_seconds:g} s;",
        f"body {HUB.ingest.body_timeout_seconds:g} s",
        f"{SPOOL.backfill_per_second:g} batches/s of each sender",
        f"{SPOOL.max_bytes // MIB} MiB, {SPOOL.max_age_seconds / DAY:g} days",
        f"Ingest continues into the log, {HUB.ingest.wal_max_bytes // (MIB << 10)} GiB",
        f"{DAYS.raw_days} days raw, {DAYS.rollup_1m_days} days by the minute, {DAYS.rollup_1h_days:,} days by the hour",
        f"| {HUB.stale_after_seconds:g} s or 3 intervals, at most {LONGEST_SECONDS / 3600:g} h |",
        f"| holders | {AGENT.holders.interval_seconds:g} s | each source {AGENT.holders.kubelet.timeout_seconds:g} s",
        f"SLURM {AGENT.holders.slurm.timeout_seconds:g} s; an end needs two complete answers",
        f"| [rules about the fleet](findings.md#evaluation) | {HUB.findings.interval_seconds:g} s |",
    ],
)
def test_figure_is_that_of_the_code(figure: str) -> None:
    assert figure in PAGE


@pytest.mark.parametrize(
    "figure",
    [
        "0.2 % of a core",
        "86 MiB",
        "1,955 batches/s",
        "74 MiB",
        "87 MiB",
        "166,664",
        "16,554",
        "66,667 rows/s",
        "1.35",
    ],
)
def test_measured_figure_is_in_the_tables_of_performance(figure: str) -> None:
    assert figure in PAGE
    assert figure in (ROOT / "docs" / "performance.md").read_text()


def test_documented_files_exist() -> None:
    files = documented("One power reading") | documented("One remote-write sample")
    assert len(files) > 60
    assert {file for file in files if not (SOURCE / file).exists()} == set()


async def test_walk_of_a_remote_write_sample_lists_all_files(tmp_path: Path) -> None:
    entered: set[str] = set()
    folder = f"{SOURCE}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(folder):
            entered.add(path.removeprefix(folder))

    threading.setprofile(note)  # threads of the hub start below
    sys.setprofile(note)
    try:
        async with running_site(tmp_path) as site:
            await write(site.hub.url, power(1.0))
            await wait_until_async(lambda: drained(site), what="the first sample to be in the store")
            entered.clear()
            await write(site.hub.url, power(2.0))
            seen = frozenset(entered)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert {file for file in seen if file.startswith(STAGES)} - BESIDE.keys() <= documented("One remote-write sample")


def power(watts: float) -> bytes:
    labels = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "UUID": "GPU-0", "instance": "node-a:9400"}
    return encode_1([WritePoint(labels, watts, now())])


async def write(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    request = urllib.request.Request(f"{url}/api/v1/write", data=body, headers=headers, method="POST")

    def send() -> int:
        with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
            return int(answer.status)

    assert await asyncio.to_thread(send) == 204


async def drained(site: Site) -> bool:
    return "gpufleet_hub_wal_records 0" in await site.text("/metrics")
