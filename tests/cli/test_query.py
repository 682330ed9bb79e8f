"""`gpufleet query`, `allocation`, `machine` and `audit`, with a running hub and without."""

import asyncio
import datetime as dt
import http.server
import json
import re
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.cli.fetch import get
from gpufleet.codecs.batch import encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.reading import Sample
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import NODE, body, gpu_sample, gpu_view, make_batch
from tests.support.authority import Authority
from tests.support.command import gpufleet
from tests.support.processes import free_port
from tests.web.hub.site import Site, now, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        await site.post(body(1, now(), last_error="[red]driver\x1b error[/red]"), body(3, now()))
        yield site


async def run(*arguments: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(gpufleet, *arguments, env={"COLUMNS": "200"})
    return done.returncode, done.stdout, done.stderr


async def test_allocations_of_mig_and_vgpu_devices(site: Site) -> None:
    """A MIG device shows the power of its GPU as the parent's. A virtual machine shows its own vGPU."""
    at, gpu = now(), gpu_view(1)
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", instance="7/0", parent=gpu.key)
    vgpu = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U-1", instance="7", parent=gpu.key)
    vm = "11111111-2222-3333-4444-555555555555"
    samples = (
        gpu_sample(gpu, at, gpu_power_watts=400.0),
        gpu_sample(mig, at, gpu_memory_used_bytes=2**30),
        gpu_sample(vgpu, at, gpu_memory_used_bytes=2**31, vgpu_vm_id=vm, vgpu_vm_id_kind="uuid"),
    )
    await site.post(encode(make_batch(9, at, samples=samples)))
    hub = ("--hub", site.hub.url)
    for name, *spec in (
        ("mig", "--kind", "bare_metal", "--target", "node-a", "--device", "MIG-1"),
        ("vm", "--kind", "gpu_slice", "--target", vm),
    ):
        code, _, err = await run("allocation", "put", name, *spec, "--valid-from", "2020-01-01T00:00:00Z", *hub)
        assert code == 0, err
    _, out, _ = await run("query", "allocation", "mig", *hub)
    assert re.search(r"^MIG-1\t.*\t1 GiB\t.*\t400 W \(parent\)$", out, re.MULTILINE), out
    _, out, err = await run("query", "allocation", "vm", *hub)
    assert "source slice_vgpu_host" in err
    assert re.search(r"^U-1\t.*\tvgpu_host\t.*\t2 GiB\t", out, re.MULTILINE), out
    assert "400 W" not in out


async def test_allocation_is_created_queried_and_closed(site: Site) -> None:
    hub = ("--hub", site.hub.url)
    put = ("allocation", "put", "a", "--kind", "bare_metal", "--target", "node-a", "--team", "blue", *hub)
    code, out, _ = await run(*put)
    assert (code, json.loads(out)["generation"]) == (0, 1)
    await site.post(body(4, now()))
    code, out, err = await run("query", "allocation", "a", *hub)
    assert code == 0
    assert "source host_local_probe" in err
    code, table, _ = await run("query", "allocations", *hub)
    assert code == 0
    assert table.split("\n")[1].split("\t")[:6] == ["a", "bare_metal", "local", "node-a", "-", "blue"]
    assert "GPUs reporting: 2 of 2 devices" in err
    assert "timeout (2)" in err  # the reason of the absent temperatures
    for more in ((), ("--machine",)):
        name = "node-a" if more else "a"
        code, out, err = await run("query", "series", name, "gpu_power_watts", "--step", "1s", *more, *hub)
        assert code == 0
        assert re.search(r"\tGPU-0\tgpu_power_watts\t100 W$", out, re.MULTILINE), out
        assert "source host_local_probe" in err
    code, out, _ = await run("allocation", "close", "a", *hub)
    assert (code, "closed_at" in json.loads(out)) == (0, True)
    code, _, err = await run(*put)
    assert code == 1
    assert "was closed" in err


async def test_lists_of_nodes_machines_gpus_and_senders(site: Site) -> None:
    hub = ("--hub", site.hub.url)
    code, out, err = await run("query", "nodes", *hub)
    assert code == 0
    assert "node-a" in out
    assert "2 of 2" in out
    assert "\x1b" not in out
    assert "GPUs reporting in cluster local: 2 of 2 expected by nvml" in err
    for name, expected in (("machines", "m-"), ("gpus", "GPU-1"), ("gpus", "node-a"), ("senders", "0.1.0")):
        code, out, _ = await run("query", name, *hub)
        assert code == 0
        assert expected in out
    code, out, _ = await run("query", "nodes", "--json", *hub)
    assert (code, [one["gpus"] for one in json.loads(out)["items"]], json.loads(out)["next"]) == (0, [2], None)
    code, out, _ = await run("query", "senders", "--json", *hub)
    assert (code, json.loads(out)[0]["missing"]) == (0, 1)


async def test_probe_of_machines_is_listed_on_request(site: Site) -> None:
    at = now()
    values: dict[str, int | float | str | Absent] = {
        "probe_hugepages": "2048kB: 7",
        "probe_boot_kernel_seconds": 2.5,
        "probe_docker_version": "\x1b[2J",
        "probe_nvidia_gpus": Absent(Reason.NO_DRIVER, "exit code 9: \x1b[2JNVIDIA-SMI has failed"),
    }
    probe = Sample(view=None, reader="probe", lane=Lane.STATIC, measured_at=at, values=values)
    await site.post(encode(make_batch(9, at, samples=(probe,))))
    code, out, _ = await run("query", "machines", "--probe", "--hub", site.hub.url)
    rows = [line.split("\t")[:4] for line in out.splitlines()]
    assert code == 0
    assert ["node-a", "hugepages", "2048kB: 7", "-"] in rows
    assert ["node-a", "boot_kernel_seconds", "2.5 s", "-"] in rows
    (driver,) = [row for row in rows if row[1:2] == ["nvidia_gpus"]]
    assert (driver[2], driver[3].partition(": ")[0], "NVIDIA-SMI has failed" in driver[3]) == ("-", "no_driver", True)
    assert "\x1b" not in out
    _, out, _ = await run("query", "machines", "--hub", site.hub.url)
    assert "hugepages" not in out


async def test_changes_of_a_probe_are_listed_with_their_times(site: Site) -> None:
    at = now() - 3 * 10**9
    for seq, pages in ((20, "0"), (21, "\x1b[2J512")):
        values: dict[str, int | float | str | Absent] = {"probe_hugepages": pages, "probe_rdma_devices": seq}
        sample = Sample(view=None, reader="probe", lane=Lane.STATIC, measured_at=at + seq, values=values)
        await site.post(encode(make_batch(seq, now(), samples=(sample,))))
    hub = ("--hub", site.hub.url)
    code, out, _ = await run("query", "probe-changes", "node-a", *hub)
    rows = [line.split("\t")[1:] for line in out.splitlines()[1:]]
    assert (code, rows) == (0, [["rdma_devices", "20", "21"], ["hugepages", "0", "?[2J512"]])
    code, out, _ = await run("query", "probe-changes", "node-a", *hub, "--json")
    record = json.loads(out)
    assert [one["at"] for one in record["items"]] == [to_datetime(at + 21).isoformat().replace("+00:00", "Z")] * 2
    code, out, err = await run("query", "probe-changes", "node-a", *hub, "--limit", "1")
    assert (len(out.splitlines()), "older changes" in err) == (2, True)
    assert (await run("query", "probe-changes", "none", *hub))[0] == 1


async def test_unreachable_hub_exits_1_and_bad_usage_2() -> None:
    code, _, err = await run("query", "nodes", "--hub", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert "cannot query" in err
    assert (await run("query", "nodes", "--frobnicate"))[0] == 2
    assert (await run("allocation", "put", "a", "--kind", "mainframe", "--target", "x"))[0] == 2
    assert (await run("allocation", "put", "a", "--kind", "slurm_job", "--target", "1", "--valid-to", "soon"))[0] == 2


async def test_unknown_allocation_is_reported_by_the_hub(site: Site) -> None:
    code, _, err = await run("query", "allocation", "none", "--hub", site.hub.url)
    assert code == 1
    assert "there is no allocation 'none'" in err


async def test_senders_show_the_oldest_unsent_batch(tmp_path: Path) -> None:
    at = now()
    heartbeat = Heartbeat(
        interval_seconds=30, version="9", started_at=at, queue_records=7, oldest_unsent=at - 60 * 10**9
    )
    async with running_site(tmp_path) as site:
        await site.post(encode(msgspec.structs.replace(make_batch(1, at), heartbeat=heartbeat)))
        code, out, _ = await run("query", "senders", "--hub", site.hub.url)
    assert code == 0
    titles, row = (line.split("\t") for line in out.splitlines())
    assert row[titles.index("oldest-unsent")] == f"{to_datetime(at - 60 * 10**9):%Y-%m-%d %H:%M:%S}Z"


async def test_senders_show_conflicts_of_cloned_machines(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.post(body(1, now()))
        clone = msgspec.structs.replace(NODE, machine_id="b" * 32, system_uuid="other", boot_id="other")
        with pytest.raises(AssertionError):  # refused
            await site.post(body(1, now() + 1, machine=clone))
        code, out, _ = await run("query", "senders", "--hub", site.hub.url)
    assert code == 0
    titles, row = out.splitlines()[:2]
    assert titles.split("\t")[-1] == "conflict"
    assert "1 batches: " in row


async def test_audit_log_is_listed_in_pages(site: Site) -> None:
    hub = ("--hub", site.hub.url)
    assert (await run("audit", *hub))[2] == "no entries\n"
    for name in ("a", "b", "c"):
        put = ("allocation", "put", name, "--kind", "bare_metal", "--target", "node-a", *hub)
        assert (await run(*put))[0] == 0
    code, out, err = await run("audit", "--limit", "2", *hub)
    assert code == 0
    _, newest, second = out.splitlines()
    assert newest.split()[0] == "3"
    assert "PUT /v1/allocations/c" in newest
    assert "local" in newest
    assert "PUT /v1/allocations/b" in second
    assert "--before 2" in err
    code, out, _ = await run("audit", "--before", "2", "--json", *hub)
    assert [one["number"] for one in json.loads(out)] == [1]
    assert (await run("audit", "--limit", "0", *hub))[0] == 2


async def test_why_queries_the_local_hub_for_an_unknown_device(site: Site, tmp_path: Path) -> None:
    """The default hub address is queried. No hub runs there, or it has no such allocation."""
    code, _, err = await run("why", "my-allocation")
    assert code == 1
    assert "has no device" in err.splitlines()[0]
    assert "http://127.0.0.1:8470/v1/allocations/my-allocation" in err.splitlines()[1]
    assert ("--hub URL" in err, "--agent URL" in err) == (True, True)


def test_tls_errors_name_the_option_to_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue(tmp_path / "crt", tmp_path / "key")
    other = Authority(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    with NotFoundServer(context) as secure, NotFoundServer(None) as plain:
        for arguments, expected in (
            (("--hub", f"https://127.0.0.1:{secure}"), "--ca"),
            (("--hub", f"https://127.0.0.1:{secure}", "--ca", str(other.file)), "other.pem"),
            (
                ("--hub", f"https://localhost:{secure}", "--ca", str(authority.file)),
                "certificate",
            ),
            (("--hub", f"https://127.0.0.1:{plain}"), "http://"),
            (("--hub", f"http://127.0.0.1:{secure}"), "https://"),
        ):
            done = gpufleet("query", "nodes", *arguments)
            assert (done.returncode, done.stdout) == (1, "")
            assert expected in done.stderr, done.stderr


def test_expired_certificate_is_reported_as_such(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue(tmp_path / "crt", tmp_path / "key", dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    with NotFoundServer(context) as port:
        done = gpufleet("query", "nodes", "--hub", f"https://127.0.0.1:{port}", "--ca", str(authority.file))
    assert "certificate has expired" in done.stderr
    assert "Renew the server" in done.stderr
    assert "authority" not in done.stderr


class NotFoundServer:
    """Loopback server that answers every request with an error. The context manager yields its port."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # handshakes fail on purpose
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._server.server_address[1])

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


async def test_fleet_summary_and_machine_retirement(site: Site) -> None:
    hub = ("--hub", site.hub.url)
    code, out, err = await run("query", "fleet", *hub)
    assert code == 0
    assert "2 of 2 expected by nvml" in out
    assert "2 of 2 GPUs report; 1 of 1 clusters are live" in err
    code, out, _ = await run("query", "fleet", "--json", *hub)
    assert msgspec.json.decode(out)["states"] == {"live": 1}
    _, out, _ = await run("query", "machines", "--json", *hub)
    (machine,) = msgspec.json.decode(out)["items"]
    code, out, _ = await run("machine", "retire", machine["id"], *hub)
    assert (code, msgspec.json.decode(out)["liveness"]["state"]) == (0, "retired")
    _, out, _ = await run("query", "fleet", *hub)
    assert "1 retired" in out
    code, out, _ = await run("machine", "get", "m-none", *hub)
    assert (code, out) == (1, "")


async def test_inventory_changes_are_listed(site: Site) -> None:
    hub = ("--hub", site.hub.url)
    for seq, slot in ((4, "0000:1b:00.0"), (5, "0000:2b:00.0")):
        sample = gpu_sample(gpu_view(0), now(), gpu_power_watts=1.0, gpu_pci_address=slot)
        await site.post(encode(make_batch(seq, now(), samples=(sample,))))
    code, out, _ = await run("query", "changes", "--kind", "moved", *hub)
    assert code == 0
    assert re.search(r"moved\tnode-a\t0000:2b:00.0\tGPU-0\tm-\S+/1b:00.0$", out, re.MULTILINE), out
    assert "no changes" in (await run("query", "changes", "--kind", "replaced", *hub))[2]
    assert "no GPUs" in (await run("query", "pools", *hub))[2]


async def test_refused_sql_statement_is_reported(site: Site) -> None:
    code, out, err = await run("query", "sql", "SELECT 1", "--hub", site.hub.url)
    assert (code, out) == (1, "")
    assert "returned 400" in err
    assert "SQL" in err


class PagedHandler(http.server.BaseHTTPRequestHandler):
    """Handler that serves a list as three pages of two."""

    def do_GET(self) -> None:
        page = int(self.path.partition("cursor=")[2] or 0)
        content = json.dumps([2 * page, 2 * page + 1]).encode()
        self.send_response(200)
        if page < 2:
            self.send_header("Link", f'</v1/list?cursor={page + 1}>; rel="next"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        return


def test_paginated_list_is_fetched_whole_unless_limited() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), PagedHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert json.loads(get(url, "/v1/list")) == [0, 1, 2, 3, 4, 5]
        assert json.loads(get(url, "/v1/list?limit=2")) == [0, 1]
        server.shutdown()


UUID = "GPU-5a61abb5-f88e-4df2-8e2f-bd67b3cf7a55"


@pytest.fixture
async def real_uuid(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        at = now()
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=UUID, pci_address="0000:1b:00.0", index=0)
        sample = gpu_sample(view, at, gpu_power_watts=100.0, gpu_utilization_ratio=0.5, gpu_name="NVIDIA H200")
        event = Event(kind="xid", at=at, view=view, code=79)
        batch = make_batch(1, at, samples=(sample,))
        report = msgspec.structs.replace(batch.reports[0], events=(event,))
        await site.post(encode(msgspec.structs.replace(batch, reports=(report,))))
        yield site


async def test_rows_without_a_terminal_have_whole_identities(real_uuid: Site) -> None:
    code, out, err = await run("query", "gpus", "--hub", real_uuid.hub.url)
    titles, row = (line.split("\t") for line in out.splitlines())
    assert code == 0
    assert row[titles.index("id")] == UUID
    assert (row[titles.index("temp")], row[titles.index("power")]) == ("-", "100 W")
    assert "not_reported (" in err


async def test_nodes_show_model_utilisation_power_and_holder(real_uuid: Site) -> None:
    code, out, _ = await run("query", "nodes", "--columns", "node,model,util,power,holder", "--hub", real_uuid.hub.url)
    assert code == 0
    assert out.splitlines()[1].split("\t") == ["node-a", "NVIDIA H200", "50 %", "100 W", "-"]
    _, out, _ = await run("query", "nodes", "--json", "--hub", real_uuid.hub.url)
    assert set(json.loads(out)["items"][0]) == {
        *("machine", "stale", "gpus", "gpus_reporting", "last_error", "unresolved_devices", "unresolved_names"),
        *("kubernetes_candidates", "kubernetes_node"),
    }


async def test_nodes_show_how_many_gpus_a_value_includes(tmp_path: Path) -> None:
    at = now()
    known = gpu_sample(gpu_view(0), at, gpu_power_watts=100.0, gpu_utilization_ratio=0.5, gpu_name="NVIDIA H200")
    other = gpu_sample(gpu_view(1), at, gpu_power_watts=60.0, gpu_name="NVIDIA H200")
    async with running_site(tmp_path) as site:
        await site.post(encode(make_batch(1, at, samples=(known, other))))
        code, out, err = await run("query", "nodes", "--columns", "util,power", "--hub", site.hub.url)
    assert (code, out.splitlines()[1].split("\t")) == (0, ["50 % (1/2)", "160 W"]), err


@pytest.mark.parametrize("name", ["GPU-5a61abb5", "5a61abb5", UUID, f"gpu/{UUID}", "node-a/1b:00.0", "node-a/0"])
async def test_events_are_filtered_by_short_id(real_uuid: Site, name: str) -> None:
    for option in ("--gpu", "--view"):
        code, out, err = await run(
            "query", "events", option, name, "--since", "10m", "--json", "--hub", real_uuid.hub.url
        )
        assert code == 0, err
        assert [one["code"] for one in json.loads(out)["events"]] == [79]


@pytest.mark.parametrize("name", ["GPU-5a61abb5", UUID, "node-a/0"])
async def test_why_explains_any_gpu_of_the_hub(real_uuid: Site, name: str) -> None:
    code, out, err = await run("why", name, "--hub", real_uuid.hub.url, "--json")
    assert code == 0, err
    document = json.loads(out)
    power = next(one for one in document["parts"][0]["lines"] if one["metric"] == "gpu_power_watts")
    assert UUID in document["subject"]
    assert (power["value"], power["reader"]) == (100.0, "nvml")


async def test_why_rejects_a_name_that_the_hub_does_not_know(real_uuid: Site) -> None:
    code, out, err = await run("why", "GPU-5b61", "--hub", real_uuid.hub.url)
    assert (code, out) == (1, "")
    assert "/v1/allocations/" in err
    assert "/v1/gpus/" in err


@pytest.mark.parametrize("command", ["gpus", "nodes", "machines", "changes", "pools", "events"])
async def test_unknown_cluster_is_an_error_with_suggestions(real_uuid: Site, command: str) -> None:
    code, out, err = await run("query", command, "--cluster", "locl", "--json", "--hub", real_uuid.hub.url)
    assert (code, out) == (1, "")
    assert "did you mean local?" in err
    code, _, _ = await run("query", command, "--cluster", "local", "--json", "--hub", real_uuid.hub.url)
    assert code == 0


@pytest.mark.parametrize(
    "command", [("top", "--once"), ("record", "readings"), ("findings", "watch")], ids=lambda one: one[0]
)
async def test_unknown_cluster_is_an_error_outside_query(
    real_uuid: Site, tmp_path: Path, command: tuple[str, ...]
) -> None:
    name, argument = command
    arguments = (name, str(tmp_path / argument) if name == "record" else argument)
    code, out, err = await run(*arguments, "--cluster", "locl", "--hub", real_uuid.hub.url)
    assert (code, out) == (1, "")
    assert "did you mean local?" in err


@pytest.mark.parametrize("command", ["gpus", "changes", "events"])
async def test_unknown_machine_is_an_error_with_suggestions(real_uuid: Site, command: str) -> None:
    code, out, err = await run("query", command, "--machine", "node-b", "--hub", real_uuid.hub.url)
    assert (code, out) == (1, "")
    assert "did you mean node-a?" in err


async def test_rows_are_selected_sorted_and_limited(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        at = now()
        samples = tuple(gpu_sample(gpu_view(n), at, gpu_power_watts=p) for n, p in enumerate((9.0, 100.0, 20.0)))
        await site.post(encode(make_batch(1, at, samples=samples)))
        hub = ("--columns", "power", "--hub", site.hub.url)
        for options, expected in (
            ((), ["9 W", "100 W", "20 W"]),
            (("--sort", "power"), ["9 W", "20 W", "100 W"]),
            (("--sort", "-power", "--limit", "2"), ["100 W", "20 W"]),
            (("--limit", "1"), ["9 W"]),
            (("--state", "lost"), []),
        ):
            code, out, err = await run("query", "gpus", *options, *hub)
            assert code == 0, err
            assert out.splitlines() == ["power", *expected]


@pytest.mark.parametrize(
    "options",
    [
        ("--state", "bogus"),
        ("--columns", "bogus"),
        ("--sort", "bogus"),
        ("--limit", "0"),
        ("--json", "--sort", "power"),
        ("--json", "--watch", "5s"),
        ("--watch", "0s"),
        ("--watch", "soon"),
    ],
)
async def test_wrong_selection_is_wrong_usage(real_uuid: Site, options: tuple[str, ...]) -> None:
    assert (await run("query", "gpus", *options, "--hub", real_uuid.hub.url))[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "--since", "1 day"),
        ("changes", "--until", "2026-01-01T00:00:00"),
        ("usage", "--start", "x"),
        ("processes", "node-a", "--at", "10x"),
        ("series", "a", "gpu_power_watts", "--end", "-5m"),
    ],
)
async def test_wrong_time_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert (await run("query", *arguments))[0] == 2


async def test_times_may_be_durations_before_now(real_uuid: Site) -> None:
    hub = ("--json", "--hub", real_uuid.hub.url)
    for arguments in (
        ("events", "--since", "1h", "--until", "10m"),
        ("changes", "--since", "2d"),
        ("usage", "--start", "2h", "--end", "1h"),
        ("processes", "node-a", "--at", "30s"),
    ):
        code, out, err = await run("query", *arguments, *hub)
        assert code == 0, err
    _, out, _ = await run("query", "usage", "--start", "2h", "--end", "1h", *hub)
    answer = json.loads(out)
    start, end = (dt.datetime.fromisoformat(answer[name]) for name in ("start", "end"))
    assert abs((end - start) - dt.timedelta(hours=1)) < dt.timedelta(seconds=1)
