"""Holders in the hub's lists: `/v1/gpus`, `/v1/nodes/gpus` and `/v1/holders`."""

import csv
import io
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, NOT_REPORTED
from gpufleet.model.errors import WireError
from gpufleet.model.holdings import (
    DeviceState,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Share,
    UnresolvedCount,
)
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import NODE, gpu_sample, gpu_view, host_sample, make_batch
from tests.fakes.store import MemoryStore
from tests.web.hub.site import Site, now, running_site

UID = "5f2b6a1e-8d1c-4c1e-9a43-0b6f1d2c7e10"
POD = Holder(kind=HolderKind.POD, id=UID, name="train-0", namespace="ml")
JOB = Holder(kind=HolderKind.JOB, id="4711", name="bert", user="ada", account="nlp", queue="gpu")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def holding(number: int, holder: Holder = POD, **changes: Any) -> Holding:
    """Return a holding of a GPU by its number."""
    fields = {
        "view": gpu_view(number).key,
        "holder": holder,
        "since": now() - 60 * NANOS,
        "methods": ("kubelet",),
        "verdict": HoldingVerdict.AGREED,
    }
    return Holding(**{**fields, **changes})


async def post(
    site: Site,
    *holdings: Holding,
    samples: tuple[Sample, ...] | None = None,
    seq: int = 1,
    machine: Machine = NODE,
    states: Mapping[str, str] | None = None,
    unresolved: Mapping[str, int | None] | None = None,
    sent_at: int | None = None,
    **batch: Any,
) -> None:
    """Post a batch with holdings, and with samples of three GPUs unless others are given.

    `states` has the holder state and detail of devices as `STATE` or `STATE: DETAIL`, by view key.
    """
    at = now() if sent_at is None else sent_at
    if samples is None:
        samples = tuple(
            gpu_sample(gpu_view(n), at, gpu_utilization_ratio=n / 4, gpu_memory_used_bytes=n << 30, gpu_name="H200")
            for n in range(3)
        )
    made = make_batch(seq, at, samples=(host_sample(at), *samples), machine=machine, **batch)
    found = [(view, *text.partition(": ")[::2]) for view, text in (states or {}).items()]
    report = msgspec.structs.replace(
        made.reports[0],
        holdings=holdings,
        device_holders=None
        if states is None
        else tuple(DeviceState(view=view, state=HolderState(state), detail=detail) for view, state, detail in found),
        unresolved=tuple(
            UnresolvedCount(source=name, names=count, examples=("GPU-x\x1b[2J",) * min(1, count or 0))
            for name, count in (unresolved or {}).items()
        ),
    )
    await site.post(encode(msgspec.structs.replace(made, reports=(report,))))


async def holders(site: Site, **query: Any) -> list[dict[str, Any]]:
    """Return the items of `/v1/holders`."""
    status, document = await site.request(f"/v1/holders?{urlencode(query)}")
    assert status == 200, document
    assert document["next"] is None
    return list(document["items"])


async def gpus(site: Site) -> dict[str, dict[str, Any]]:
    """Return the holders of each view of `/v1/gpus`, by its key."""
    status, document = await site.request("/v1/gpus")
    assert status == 200
    return {one["device"]["id"].split("/", 2)[2]: one.get("holders") for one in document["items"]}


async def test_gpus_have_their_present_holders(site: Site) -> None:
    ended = holding(1, since=now() - 60 * NANOS, until=now() - 30 * NANOS)
    await post(site, holding(0), holding(0, JOB, share=Share.TIMESLICE, container="c"), ended)
    found = await gpus(site)
    assert found["gpu/GPU-0"]["state"] == "held"
    assert [one["holder"]["id"] for one in found["gpu/GPU-0"]["holdings"]] == ["4711", UID]
    assert (found["gpu/GPU-1"]["state"], found["gpu/GPU-1"].get("holdings")) == ("unknown", None)
    _, one = await site.request("/v1/gpus/GPU-0")
    assert one["holders"] == found["gpu/GPU-0"]


async def test_holders_without_confirmation_are_unknown(site: Site) -> None:
    await post(site, holding(0, verdict=HoldingVerdict.UNKNOWN), holding(1, verdict=HoldingVerdict.CONFLICT))
    found = await gpus(site)
    assert [(one["state"], len(one["holdings"])) for one in list(found.values())[:2]] == [("unknown", 1), ("held", 1)]
    _, document = await site.request("/v1/nodes/gpus")
    assert [(one["verdict"], one["devices"]) for one in document["items"][0]["holders"]] == [("conflict", 2)]


async def test_gpu_in_parts_has_only_the_holders_of_its_parts(site: Site) -> None:
    gpu = gpu_view(1)
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", instance="7/0", parent=gpu.key)
    await post(site, holding(1, view=mig.key), samples=(gpu_sample(gpu, now()), gpu_sample(mig, now())))
    found = await gpus(site)
    assert found[gpu.key] is None
    assert [one["holder"]["id"] for one in found[mig.key]["holdings"]] == [UID]


async def states(site: Site) -> dict[str, tuple[str, str]]:
    """Return state and detail of each view of `/v1/gpus`, by its key."""
    return {view: (one["state"], one.get("detail", "")) for view, one in (await gpus(site)).items()}


async def test_device_is_free_only_if_its_agent_reports_so_and_no_holding_is_present(site: Site) -> None:
    reported = {"gpu/GPU-0": "free", "gpu/GPU-1": "free", "gpu/GPU-2": "unknown: kubelet: timeout"}
    await post(site, holding(0), states=reported, unresolved={"kubelet": 2, "libvirt": None, "slurm": 0})
    assert await states(site) == {
        "gpu/GPU-0": ("held", ""),
        "gpu/GPU-1": ("free", ""),
        "gpu/GPU-2": ("unknown", "kubelet: timeout"),
    }
    _, document = await site.request("/v1/nodes/gpus")
    assert document["items"][0]["holder_states"] == {"held": 1, "free": 1, "unknown": 1}
    _, document = await site.request("/v1/nodes")
    assert document["items"][0]["unresolved_devices"] == {"kubelet": 2, "libvirt": None, "slurm": 0}
    assert document["items"][0]["unresolved_names"] == {"kubelet": ["GPU-x[2J"]}

    await post(site, seq=2)  # a batch without states changes none
    assert (await states(site))["gpu/GPU-1"] == ("free", "")
    await post(site, states={"gpu/GPU-2": "free"}, seq=3)  # a report has every device
    assert (await states(site))["gpu/GPU-1"] == ("unknown", NOT_REPORTED)
    assert (await states(site))["gpu/GPU-2"] == ("free", "")
    _, document = await site.request("/v1/nodes")
    assert (document["items"][0]["unresolved_devices"], document["items"][0]["unresolved_names"]) == ({}, {})


async def test_free_device_of_a_machine_without_reports_is_unknown(site: Site) -> None:
    await post(site, states={"gpu/GPU-0": "free"})
    assert (await site.request("/v1/machines/node-a", "DELETE"))[0] == 200
    assert (await gpus(site))["gpu/GPU-0"]["state"] == "unknown"


async def test_free_state_of_a_backlog_is_not_present(site: Site) -> None:
    await post(site, states={"gpu/GPU-0": "free"}, sent_at=now() - HOLDING_TTL_NS - 60 * NANOS)
    assert (await states(site))["gpu/GPU-0"] == ("unknown", NOT_REPORTED)


async def test_another_sender_cannot_make_a_device_free(site: Site) -> None:
    unknown, free = {"gpu/GPU-0": "unknown: kubelet: timeout"}, {"gpu/GPU-0": "free"}
    await post(site, states=unknown)
    await post(site, states=free, sender="another", epoch="b" * 32)
    assert (await states(site))["gpu/GPU-0"] == ("unknown", "kubelet: timeout")
    other = msgspec.structs.replace(NODE, name="node-b", machine_id="b", system_uuid="b", boot_id="b")
    await post(site, states=free, machine=other, sender="node-b", epoch="c" * 32)
    _, document = await site.request("/v1/gpus")
    found = {(one["node"], one["device"]["uuid"]): one["holders"]["state"] for one in document["items"]}
    assert (found["node-a", "GPU-0"], found["node-b", "GPU-0"]) == ("unknown", "free")


def mig_view(gpu: View, instance: int) -> View:
    return View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{instance}", instance=f"{instance}/0", parent=gpu.key)


async def test_part_of_a_gpu_that_another_sender_reports_as_held_is_not_free(site: Site) -> None:
    gpu, other = gpu_view(1), gpu_view(2)
    first, second = mig_view(gpu, 7), mig_view(gpu, 8)
    samples = tuple(gpu_sample(view, now()) for view in (gpu, first, second, other))
    await post(site, states=dict.fromkeys([first.key, second.key, other.key], "free"), samples=samples)
    await post(site, holding(1), holding(1, JOB, view=first.key), samples=samples, sender="another", epoch="f" * 32)
    found = {view: state for view, (state, _) in (await states(site)).items()}
    assert found == {gpu.key: "held", first.key: "held", second.key: "unknown", other.key: "free"}
    _, document = await site.request("/v1/nodes/gpus")
    assert document["items"][0]["holder_states"] == {"held": 2, "free": 1, "unknown": 1}


async def test_no_device_is_free_while_an_unlisted_device_of_an_unknown_gpu_is_held(site: Site) -> None:
    await post(site, states=dict.fromkeys(["gpu/GPU-0", "gpu/GPU-1", "gpu/GPU-2"], "free"))
    await post(site, holding(1, view="mig/MIG-7"), holding(2), sender="another", epoch="f" * 32)
    assert [state for state, _ in (await states(site)).values()] == ["unknown", "unknown", "held"]


async def test_devices_of_a_gpu_are_not_free_while_its_removed_mig_device_is_held(site: Site) -> None:
    gpu, other = gpu_view(1), gpu_view(2)
    gone, kept = mig_view(gpu, 7), mig_view(gpu, 8)
    at = now()
    before = tuple(gpu_sample(view, at - 600 * NANOS) for view in (gpu, gone, kept, other))
    await post(site, holding(1, view=gone.key), samples=before, sent_at=at - 600 * NANOS)
    after = tuple(gpu_sample(view, at) for view in (gpu, kept, other))
    for seq in (2, 3):
        await post(site, states=dict.fromkeys([kept.key, other.key], "free"), samples=after, seq=seq)
    found = await gpus(site)
    assert gone.key not in found
    assert found.pop(gpu.key) is None
    assert {view: one["state"] for view, one in found.items()} == {kept.key: "unknown", other.key: "free"}


async def test_state_of_a_late_batch_replaces_no_newer_state(site: Site) -> None:
    late = now() - 600 * NANOS
    await post(site, states={"gpu/GPU-0": "unknown: kubelet: timeout"}, seq=5)
    await post(site, states={"gpu/GPU-0": "free"}, sent_at=late, seq=4)
    await post(site, states={"gpu/GPU-0": "free"}, sent_at=late, epoch="e" * 32)  # of an earlier run
    assert (await states(site))["gpu/GPU-0"] == ("unknown", "kubelet: timeout")


async def test_restarted_hub_keeps_states_and_shows_free_once_the_machine_reports(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_site(tmp_path, store) as site:
        await post(site, states={"gpu/GPU-0": "free", "gpu/GPU-1": "unknown: kubelet: timeout"})
        assert [one[0] for one in (await states(site)).values()] == ["free", "unknown", "unknown"]
    store.closed = False
    async with running_site(tmp_path, store) as site:
        assert [one[0] for one in (await states(site)).values()] == ["unknown", "unknown", "unknown"]
        await post(site, seq=2)
        assert [one[0] for one in (await states(site)).values()] == ["free", "unknown", "unknown"]


async def test_last_holders_of_a_machine_without_reports_are_not_current(site: Site) -> None:
    await post(site, holding(0))
    _, before = await site.request("/v1/nodes/gpus")
    assert [one["holder"]["name"] for one in before["items"][0]["holders"]] == ["train-0"]
    assert before["items"][0]["liveness"]["state"] == "live"
    assert (await site.request("/v1/machines/node-a", "DELETE"))[0] == 200
    _, after = await site.request("/v1/nodes/gpus")
    assert (after["items"][0]["liveness"]["state"], after["items"][0]["holders"]) == ("retired", [])
    found = (await gpus(site))["gpu/GPU-0"]
    assert (found["state"], found.get("holdings"), bool(found["detail"])) == ("unknown", None, True)
    (row,) = await holders(site)
    assert (row["current"], row["liveness"]["state"], row.get("readings")) == (False, "retired", None)


async def test_list_names_device_and_readings_of_each_holder(site: Site) -> None:
    await post(site, holding(1, container="main"), holding(2, JOB, steps=("0",), share=Share.EXCLUSIVE))
    pod, job = await holders(site)
    assert (pod["node"], pod["uuid"], pod["index"], pod["model"]) == ("node-a", "GPU-1", 1, "H200")
    assert (pod["holder"]["namespace"], pod["container"], pod["verdict"], pod["current"]) == (
        "ml",
        "main",
        "agreed",
        True,
    )
    assert pod["readings"]["gpu_utilization_ratio"]["value"] == 0.25
    assert pod["readings"]["gpu_memory_used_bytes"]["value"] == 1 << 30
    assert (job["holder"]["user"], job["steps"], job["share"], job.get("until")) == ("ada", ["0"], "exclusive", None)
    status, device = await site.request(f"/v1/gpus/{pod['device']}")
    assert (status, device["device"]["uuid"]) == (200, "GPU-1")


async def test_readings_of_a_shared_device_are_not_those_of_one_holder(site: Site) -> None:
    await post(site, holding(0, share=Share.TIMESLICE), holding(1), holding(1, JOB), holding(2))
    scopes = {
        (one["uuid"], one["holder"]["id"]): one["readings"]["gpu_utilization_ratio"].get("scope", "own")
        for one in await holders(site)
    }
    assert scopes == {
        ("GPU-0", UID): "shared_device",
        ("GPU-1", UID): "shared_device",
        ("GPU-1", "4711"): "shared_device",
        ("GPU-2", UID): "own",
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"kind": "job"}, ["4711"]),
        ({"id": UID}, [UID]),
        ({"namespace": "ml"}, [UID]),
        ({"name": "bert"}, ["4711"]),
        ({"user": "ada"}, ["4711"]),
        ({"account": "nlp"}, ["4711"]),
        ({"queue": "gpu"}, ["4711"]),
        ({"machine": "node-a"}, [UID, "4711"]),
        ({"machine": "node-b"}, []),
        ({"cluster": "local", "user": "bob"}, []),
        ({"cluster": "other"}, []),
    ],
)
async def test_list_is_filtered(site: Site, query: dict[str, str], expected: list[str]) -> None:
    await post(site, holding(0), holding(1, JOB))
    assert [one["holder"]["id"] for one in await holders(site, **query)] == expected


async def test_list_at_an_instant_and_in_an_interval(site: Site) -> None:
    at = now()
    await post(site, holding(0, since=at - 3600 * NANOS, until=at - 1800 * NANOS), holding(0, JOB, since=at - NANOS))

    async def ids(**query: int) -> list[str]:
        times = {name: to_datetime(at - ago * NANOS).isoformat() for name, ago in query.items()}
        return [one["holder"]["id"] for one in await holders(site, **times)]

    assert await ids() == ["4711"]
    assert await ids(at=2700) == [UID]
    assert await ids(at=900) == []
    assert await ids(start=7200) == ["4711", UID]
    assert await ids(start=7200, end=5400) == []
    (row,) = await holders(site, at=to_datetime(at - 2700 * NANOS).isoformat())
    assert (row["current"], row["until"] is not None, row.get("readings")) == (False, True, None)


async def test_wrong_interval_or_cursor_is_refused(site: Site) -> None:
    for query, field in (
        ({"at": "soon"}, "at"),
        ({"at": "2026-01-01T00:00:00Z", "start": "2026-01-01T00:00:00Z"}, "at"),
        ({"end": "2026-01-01T00:00:00Z"}, "end"),
        ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "end"),
        ({"cursor": "abc"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"pod": "x"}, "pod"),
    ):
        status, document = await site.request(f"/v1/holders?{urlencode(query)}")
        assert (status, document["field"]) == (400, field), query
    assert (await site.request("/v1/holders?kind=person"))[0] == 400


async def test_pages_join_to_the_whole_list(site: Site) -> None:
    await post(site, *(holding(n, holder) for n in range(3) for holder in (POD, JOB)))
    whole = [(one["device"], one["holder"]["id"]) for one in await holders(site)]
    assert len(whole) == 6
    for limit in (1, 4):
        found: list[tuple[str, str]] = []
        cursor: dict[str, str] = {}
        while True:
            status, page = await site.request(f"/v1/holders?{urlencode({'limit': limit, **cursor})}")
            assert (status, len(page["items"]) <= limit) == (200, True)
            found += [(one["device"], one["holder"]["id"]) for one in page["items"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert found == whole
    status, document = await site.request(f"/v1/holders?{urlencode({'user': 'ada', **cursor})}")
    assert (status, document["field"]) == (400, "cursor")


async def test_longest_names_fit_in_a_cursor(site: Site) -> None:
    longest = "\U0001f600" * 1024
    pods = [Holder(kind=HolderKind.POD, id=f"{longest[:-1]}{n}", name=longest, namespace=longest) for n in range(2)]
    await post(site, *(holding(0, pod, container=longest) for pod in pods))
    _, page = await site.request("/v1/holders?limit=1")
    status, last = await site.request(f"/v1/holders?{urlencode({'limit': 1, 'cursor': page['next']})}")
    assert (status, last["items"][0]["holder"]["id"], last["next"]) == (200, pods[1].id, None)


async def test_allocations_of_a_holder_are_named(site: Site) -> None:
    vm = Holder(kind=HolderKind.VM, id="11111111-2222-3333-4444-555555555555", name="vm")
    await post(site, holding(0), holding(1, JOB), holding(2, POD, parent=vm))
    for id_, kind, target in (
        ("for-pod", "kubernetes_pod", {"pod_uid": UID}),
        ("for-job", "slurm_job", {"job_id": "4711"}),
        ("for-vm", "kubevirt_vmi", {"vm_uuid": vm.id}),
        ("elsewhere", "slurm_job", {"job_id": "4712"}),
    ):
        spec = {"kind": kind, "target": {"cluster": "local", **target}, "tenant": f"t-{id_}"}
        status, document = await site.request(
            f"/v1/allocations/{id_}", "PUT", {**spec, "valid_from": "2020-01-01T00:00:00Z"}
        )
        assert status == 201, document
    found = {one["uuid"]: [(a["id"], a["tenant"]) for a in one["allocations"]] for one in await holders(site)}
    assert found == {
        "GPU-0": [("for-pod", "t-for-pod")],
        "GPU-1": [("for-job", "t-for-job")],
        "GPU-2": [("for-pod", "t-for-pod"), ("for-vm", "t-for-vm")],
    }


@pytest.mark.parametrize("path", ["holders", "gpus", "nodes/gpus"])
async def test_list_is_a_table(site: Site, path: str) -> None:
    await post(site, holding(0, Holder(kind=HolderKind.POD, id="=1+1", name='a"b')))
    titles, *rows = csv.reader(io.StringIO(await site.text(f"/v1/{path}?format=csv")))
    cells = dict(zip(titles, rows[0], strict=True))
    own = [text for name, text in cells.items() if name.startswith("holder")]
    assert any("=1+1" in text for text in own)
    assert not any(text.startswith("=") for text in own)


HOSTILE = 'a\x1b[2J\x07\nb\tc\x9bd"\\<b>\u202e=1+1'


async def test_hostile_names_are_returned_as_they_are(site: Site) -> None:
    pod = Holder(kind=HolderKind.POD, id=HOSTILE, name=HOSTILE, namespace=HOSTILE, user=HOSTILE)
    await post(site, holding(0, pod, container=HOSTILE, steps=(HOSTILE,)))
    (row,) = await holders(site, namespace=HOSTILE, id=HOSTILE)
    assert (row["holder"]["name"], row["container"]) == (HOSTILE, HOSTILE)
    assert (await gpus(site))["gpu/GPU-0"]["holdings"][0]["holder"]["name"] == HOSTILE
    text = await site.text("/v1/holders")
    assert not set(text) & set("\x1b\x07\n\t")


async def test_name_of_10_kb_is_refused_in_a_batch_and_matches_nothing(site: Site) -> None:
    with pytest.raises(WireError):
        await post(site, holding(0, Holder(kind=HolderKind.POD, id=UID, name="x" * 10_000)))
    assert await holders(site, name="x" * 10_000) == []
