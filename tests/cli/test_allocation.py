"""`gpufleet allocation put`: devices by the short ids that `query gpus` prints."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_sample, make_batch
from tests.support.command import Done, gpufleet
from tests.web.hub.site import Site, now, running_site

FIRST = "GPU-5a61abb5-f88e-4df2-8e2f-bd67b3cf7a55"
SECOND = "GPU-5a61abb5-088e-4df2-8e2f-bd67b3cf7a55"
UNKNOWN = "gpu-0a61abb5-088e-4df2-8e2f-bd67b3cf7a55"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        at = now()
        views = [
            View(kind=ViewKind.GPU, side=Side.HOST, uuid=FIRST, pci_address="0000:1b:00.0", index=0),
            View(kind=ViewKind.GPU, side=Side.HOST, uuid=SECOND, pci_address="0000:1c:00.0", index=1),
            View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1d:00.0"),
        ]
        samples = tuple(gpu_sample(view, at, gpu_state="ok") for view in views)
        await site.post(encode(make_batch(1, at, samples=samples)))
        yield site


async def put(site: Site, device: str, *options: str, target: str = "node-a") -> Done:
    arguments = ("allocation", "put", "a", "--kind", "bare_metal", "--target", target, "--device", device)
    return await asyncio.to_thread(gpufleet, *arguments, *options, "--hub", site.hub.url)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GPU-5a61abb5-f88e", FIRST),
        ("5A61ABB5-F88E", FIRST),
        (SECOND, SECOND),
        (f"gpu/{SECOND}", SECOND),
        (UNKNOWN, f"GPU-{UNKNOWN[4:]}"),
        ("node-a/0", FIRST),
        ("node-a/1d:00.0", "0000:1d:00.0"),
        ("1d:00.0", "0000:1d:00.0"),
    ],
)
async def test_device_is_stored_by_uuid_or_address(site: Site, text: str, name: str) -> None:
    done = await put(site, text)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"]["devices"] == [name]


async def test_ambiguous_short_id_names_the_candidates(site: Site) -> None:
    done = await put(site, "GPU-5a61abb5")
    assert (done.returncode, done.stdout) == (1, "")
    assert FIRST in done.stderr
    assert SECOND in done.stderr


@pytest.mark.parametrize(
    ("device", "options", "target"),
    [
        ("GPU-5a61abb5-f88e", (), "node-b"),
        ("GPU-5a61abb5-f88e", ("--cluster", "other"), "node-a"),
        ("GPU-77777777", (), "node-a"),
    ],
)
async def test_device_of_another_machine_or_cluster_is_an_error(
    site: Site, device: str, options: tuple[str, ...], target: str
) -> None:
    done = await put(site, device, *options, target=target)
    assert (done.returncode, done.stdout) == (1, "")
    assert device in done.stderr


@pytest.mark.parametrize(
    "command", [("query", "processes", "node-b", "--view"), ("query", "events", "--machine", "node-b", "--gpu")]
)
async def test_short_id_of_another_machine_is_an_error(site: Site, command: tuple[str, ...]) -> None:
    done = await asyncio.to_thread(gpufleet, *command, "node-a/1d:00.0", "--hub", site.hub.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "node-a" in done.stderr


async def test_unknown_cluster_is_an_error_with_suggestions(site: Site) -> None:
    done = await put(site, FIRST, "--cluster", "locl")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean local?" in done.stderr


async def test_target_that_is_not_known_yet_is_noted_with_suggestions(site: Site) -> None:
    arguments = ("allocation", "put", "b", "--kind", "bare_metal", "--target", "node-b", "--hub", site.hub.url)
    done = await asyncio.to_thread(gpufleet, *arguments)
    assert json.loads(done.stdout)["id"] == "b"
    assert "did you mean node-a?" in done.stderr


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (("--expect", "H200=2", "--expect", "H100=1"), 0, {"H200": 2, "H100": 1}),
        (("--expect", "H200=2", "--expect", "H200=3"), 2, None),
        (("--expect", "H200"), 2, None),
        (("--expect", "H200=-1"), 2, None),
    ],
)
async def test_expected_gpus_are_given_once_by_class(
    site: Site, options: tuple[str, ...], status: int, expected: dict[str, int] | None
) -> None:
    done = await put(site, FIRST, *options)
    assert done.returncode == status, done.stderr
    assert expected is None or json.loads(done.stdout)["spec"]["expected"] == expected
