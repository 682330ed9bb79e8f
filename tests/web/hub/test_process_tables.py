"""Process tables of a machine's GPUs: API and `gpufleet query processes`."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.api.answer import ProcessesAnswer
from gpufleet.model.machine import Machine
from gpufleet.model.process import Process
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS, to_datetime
from tests.cli.test_query import run
from tests.codecs.batch.test_processes import process
from tests.fakes.batches import body, gpu_sample, gpu_view, make_batch
from tests.web.hub.site import Site, now, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def with_processes(number: int, at: int, *processes: Process) -> Sample:
    return msgspec.structs.replace(gpu_sample(gpu_view(number), at), processes=processes)


async def tables(site: Site, more: str = "") -> ProcessesAnswer:
    status, document = await site.request(f"/v1/machines/node-a/processes{more}")
    assert status == 200, document
    return msgspec.convert(document, ProcessesAnswer)


async def test_newest_table_of_each_device_is_returned(site: Site) -> None:
    at = now()
    before = at - 30 * NANOS
    await site.post(
        encode(
            make_batch(
                1,
                before,
                samples=(with_processes(0, before, process(1, 10)), with_processes(1, before, process(2, 20))),
            )
        ),
        encode(
            make_batch(2, at, samples=(with_processes(0, at, process(3, 5), process(4, 50, start=9, name="train")),))
        ),
    )
    processes = await tables(site)
    assert processes.node == "node-a"
    first, second = processes.devices
    assert (first.device, first.reader, first.source, first.stale) == (
        "gpu/GPU-0", "nvml", "host_local_probe", False,
    )  # fmt: skip
    assert (first.measured_at, first.total) == (to_datetime(at), 2)
    assert [(one.pid, one.start_time, one.name) for one in first.processes] == [(4, 9, "train"), (3, None, "")]
    assert first.processes[0].readings["memory_bytes"].value == 50
    assert [one.pid for one in second.processes] == [2]
    assert [one.device for one in (await tables(site, "?view=gpu/GPU-1")).devices] == ["gpu/GPU-1"]


async def test_process_table_at_another_time(site: Site) -> None:
    at = now()
    long_ago = at - 7200 * NANOS
    await site.post(encode(make_batch(1, long_ago, samples=(with_processes(0, long_ago, process(1, 10)),))))
    assert (await tables(site)).devices == ()
    (table,) = (
        await tables(site, f"?at={to_datetime(long_ago + NANOS):%Y-%m-%dT%H:%M:%S}Z".replace("+", "%2B"))
    ).devices
    assert [one.pid for one in table.processes] == [1]


async def test_unknown_or_ambiguous_machine_is_refused(site: Site) -> None:
    other = Machine(name="node-a", machine_id="b" * 32, system_uuid="other", boot_id="other")
    await site.post(body(1, now()), body(1, now(), sender="second", machine=other))
    status, document = await site.request("/v1/machines/none/processes")
    assert (status, document["error"]) == (404, "not_found")
    status, document = await site.request("/v1/machines/node-a/processes")
    assert (status, len(document["candidates"])) == (409, 2)
    assert (await site.request(f"/v1/machines/{document['candidates'][0]}/processes"))[0] == 200
    status, document = await site.request("/v1/machines/node-a/processes?at=yesterday")
    assert (status, document["field"]) == (400, "at")


async def test_query_processes_prints_the_tables(site: Site) -> None:
    at = now()
    samples = (with_processes(0, at, process(4242, 3 << 30, name="[red]tr\x1bain")), with_processes(1, at))
    await site.post(encode(make_batch(1, at, samples=samples)))
    code, out, err = await run("query", "processes", "node-a", "--hub", site.hub.url)
    assert code == 0, err
    assert re.search(r"^GPU-0\t4242\t\[red\]tr\?ain\tcompute,mps\t3 GiB\t25 %\t", out, re.MULTILINE), out
    assert re.search(r"^GPU-1\tnone\t", out, re.MULTILINE), out
    code, _, err = await run("query", "processes", "nowhere", "--hub", site.hub.url)
    assert (code != 0, "nowhere" in err) == (True, True)
