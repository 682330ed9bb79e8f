"""`gpufleet query who`, and the column of holders in `gpufleet query gpus` and `nodes`."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.cli.query.who import who_tables
from gpufleet.cli.table import Layout, render
from gpufleet.model.api.holders import HolderPage
from gpufleet.model.holdings import Holder, HolderKind, HoldingVerdict, Owner, Share
from tests.cli.test_query import run
from tests.web.hub.site import Site, running_site
from tests.web.hub.test_holders import HOSTILE, JOB, POD, holding, post

OWNER = Owner(kind="Job", name="train")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        pod = msgspec.structs.replace(POD, owners=(OWNER,))
        await post(
            site,
            holding(0, pod, container="main"),
            holding(1, pod, share=Share.TIMESLICE, replicas=2, total_replicas=4),
            holding(1, JOB, steps=("0", "1"), share=Share.TIMESLICE, replicas=1, verdict=HoldingVerdict.DECLARED_ONLY),
            holding(2, JOB, verdict=HoldingVerdict.CONFLICT),
        )
        yield site


async def rows(site: Site, command: str, *options: str) -> list[dict[str, str]]:
    """Return the rows of `gpufleet query` without a terminal."""
    code, out, err = await run("query", command, *options, "--hub", site.hub.url)
    assert code == 0, err
    titles, *lines = [line.split("\t") for line in out.splitlines()]
    return [dict(zip(titles, line, strict=True)) for line in lines]


async def test_each_holder_of_each_device_is_a_row(site: Site) -> None:
    found = await rows(site, "who")
    shown = ("node", "gpu", "kind", "holder", "container", "user", "share", "verdict", "util")
    assert [tuple(row[name] for name in shown) for row in found] == [
        ("node-a", "GPU-0", "pod", "ml/train-0", "main", "-", "exclusive", "agreed", "0 %"),
        (
            "node-a",
            "GPU-1",
            "job",
            "job 4711 bert",
            "0,1",
            "ada",
            "timeslice x1",
            "declared_only",
            "25 % (shared_device)",
        ),
        ("node-a", "GPU-1", "pod", "ml/train-0", "-", "-", "timeslice 2/4", "agreed", "25 % (shared_device)"),
        ("node-a", "GPU-2", "job", "? job 4711 bert", "-", "ada", "exclusive", "conflict", "50 %"),
    ]
    assert (found[0]["owner"], found[0]["id"], found[0]["model"], found[0]["state"]) == (
        "Job train",
        POD.id,
        "H200",
        "live",
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}Z", found[0]["since"])


async def test_rows_are_selected(site: Site) -> None:
    for options, expected in (
        (("--kind", "job"), ["GPU-1", "GPU-2"]),
        (("--namespace", "ml"), ["GPU-0", "GPU-1"]),
        (("--user", "ada", "--account", "nlp", "--queue", "gpu"), ["GPU-1", "GPU-2"]),
        (("--id", POD.id, "--name", "train-0"), ["GPU-0", "GPU-1"]),
        (("--user", "bob"), []),
        (("--limit", "1"), ["GPU-0"]),
        (("--sort", "-util", "--limit", "1"), ["GPU-2"]),
        (("--machine", "node-a", "--cluster", "local", "--state", "lost"), []),
        (("--at", "1d"), []),
        (("--start", "1d", "--end", "1h"), []),
        (("--at", "10s"), ["GPU-0", "GPU-1", "GPU-1", "GPU-2"]),
    ):
        assert [row["gpu"] for row in await rows(site, "who", *options)] == expected, options


@pytest.mark.parametrize(
    "options",
    [("--at", "1h", "--start", "2h"), ("--end", "1h"), ("--kind", "person"), ("--at", "x"), ("--json", "--wide")],
)
async def test_wrong_options_are_wrong_usage(site: Site, options: tuple[str, ...]) -> None:
    assert (await run("query", "who", *options, "--hub", site.hub.url))[0] == 2


async def test_unknown_cluster_and_machine_are_errors(site: Site) -> None:
    for option, name in (("--cluster", "locl"), ("--machine", "node-b")):
        code, out, _ = await run("query", "who", option, name, "--hub", site.hub.url)
        assert (code, out.splitlines()[1:]) == (1, [])


async def test_json_is_the_answer_of_the_hub(site: Site) -> None:
    code, out, _ = await run("query", "who", "--kind", "job", "--json", "--hub", site.hub.url)
    page = msgspec.json.decode(out, type=HolderPage)
    assert (code, page.next, [one.verdict for one in page.items]) == (0, None, ["declared_only", "conflict"])


async def page_of(site: Site) -> HolderPage:
    _, document = await site.request("/v1/holders")
    return msgspec.convert(document, HolderPage)


async def test_terminal_shows_verdicts_other_than_agreed(site: Site) -> None:
    page = await page_of(site)
    shown = render(who_tables(page), Layout(columns=("gpu", "verdict")), width=100)
    assert [line.split() for line in shown.text.splitlines()[1:]] == [
        ["GPU-0", "-"],
        ["GPU-1", "declared_only"],
        ["GPU-1", "-"],
        ["GPU-2", "conflict"],
    ]
    agreed = msgspec.structs.replace(page, items=page.items[:1])
    assert "verdict" not in render(who_tables(agreed), Layout(), width=300).text
    assert "?" not in render(who_tables(agreed), Layout(), width=300).notes


async def test_columns_fit_a_narrow_terminal(site: Site) -> None:
    shown = render(who_tables(await page_of(site)), Layout(), width=60)
    titles, *lines = shown.text.splitlines()
    assert max(map(len, (titles, *lines))) <= 60
    assert titles.split()[:3] == ["node", "gpu", "holder"]


async def test_holders_of_gpus_and_nodes_are_marked_if_uncertain(site: Site) -> None:
    assert [row["holder"] for row in await rows(site, "gpus")] == [
        "ml/train-0",
        "job 4711 bert, ml/train-0",
        "? job 4711 bert",
    ]
    assert [row["holder"] for row in await rows(site, "nodes")] == ["ml/train-0, ? job 4711 bert"]
    for command in ("gpus", "nodes", "who"):
        _, _, err = await run("query", command, "--hub", site.hub.url)
        assert "? before a holder" in err, command


async def test_last_holders_of_a_machine_without_reports_are_not_shown_as_present(site: Site) -> None:
    assert (await site.request("/v1/machines/node-a", "DELETE"))[0] == 200
    for command in ("gpus", "nodes"):
        assert {row["holder"] for row in await rows(site, command)} == {"-"}, command
        _, _, err = await run("query", command, "--hub", site.hub.url)
        assert "stale (" in err, command
    found = await rows(site, "who")
    assert {(row["holder"][:2], row["state"], row["util"]) for row in found} == {("? ", "retired", "-")}


async def test_free_and_unknown_devices_are_shown(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        free = {"gpu/GPU-0": "free", "gpu/GPU-1": "unknown: kubelet: timeout"}
        await post(site, states=free, unresolved={"kubelet": 2, "libvirt": None, "slurm": 0})
        assert [row["holder"] for row in await rows(site, "gpus")] == ["free", "-", "-"]
        _, _, err = await run("query", "gpus", "--hub", site.hub.url)
        assert "unknown (1)" in err
        (node,) = await rows(site, "nodes")
        assert (node["holder"], node["unresolved"]) == ("1 of 3 free", "kubelet 2 (GPU-x[2J), libvirt -")
        await post(site, holding(1), states={f"gpu/GPU-{number}": "free" for number in range(3)}, seq=2)
        assert [row["holder"] for row in await rows(site, "nodes")] == ["ml/train-0, 2 free"]


async def test_hostile_names_do_not_control_a_terminal(tmp_path: Path) -> None:
    pod = Holder(
        kind=HolderKind.POD, id=HOSTILE, name=HOSTILE, namespace=HOSTILE, user=HOSTILE,
        owners=(Owner(kind=HOSTILE, name=HOSTILE),),
    )  # fmt: skip
    huge = Holder(kind=HolderKind.JOB, id="1", name="x" * 1024)
    async with running_site(tmp_path) as site:
        await post(site, holding(0, pod, container=HOSTILE, claim=HOSTILE, steps=(HOSTILE,)), holding(1, huge))
        for command in ("who", "gpus", "nodes"):
            code, out, err = await run("query", command, "--wide", "--hub", site.hub.url)
            written = out.replace("\t", "") + err
            assert (code, [line for line in written.splitlines() if not line.isprintable()]) == (0, []), command
        _, out, _ = await run("query", "who", "--json", "--hub", site.hub.url)
        assert json.loads(out)["items"][0]["holder"]["name"] == HOSTILE
        assert out.rstrip("\n").isprintable()
        shown = render(who_tables(await page_of(site)), Layout(), width=80).text.splitlines()
    assert (len(shown), max(map(len, shown)) <= 80, all(map(str.isprintable, shown))) == (3, True, True)
