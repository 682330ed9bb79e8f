"""docs/architecture.md: the files of the two data walks exist, and the walk of a remote-write sample is complete."""

import asyncio
import re
import sys
import threading
import urllib.request
from pathlib import Path
from types import FrameType

from gpufleet.codecs.remote_write.encode import WritePoint, encode_1
from gpufleet.fleet.contract.records import CheckPlace, Requirement
from gpufleet.fleet.rules.table import RULES
from gpufleet.wiring.contract import load_contract
from tests.support.waiting import PATIENCE, wait_until_async
from tests.web.hub.site import Site, now, running_site

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpufleet"
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
