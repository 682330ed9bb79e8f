"""Holders on the metrics pages: labels, several holders of a device, hostile names."""

import datetime as dt
import re

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.delivery.export import AgentStats
from gpufleet.dialects import l9gpu
from gpufleet.dialects.dcgm_exporter import WINDOW_MS, XID_COUNT
from gpufleet.dialects.native import MEASURED
from gpufleet.dialects.registry import DIALECTS
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.exporters.dcgm_exporter import ANY_XID, add_dcgm
from gpufleet.exporters.exposition import MetricsPage, PageFormat, write_page
from gpufleet.exporters.holders import (
    HOLDER_INFO,
    HOLDER_STATE,
    SERIES_LABELS,
    holder_at,
    holder_labels,
    only_holder,
    pod_metadata,
)
from gpufleet.exporters.native import add_native
from gpufleet.exporters.prometheus import GPU_INFO, NativePage, PrometheusExporter, device_labels
from gpufleet.exporters.subjects import ABSENT
from gpufleet.holders.kubelet.folders import NodeFolders, PodIdentities
from gpufleet.holders.kubelet.mapping import map_pods
from gpufleet.holders.kubelet.parse import parse_pods
from gpufleet.holders.slurm.mapping import SlurmNodeGpus, claims_of
from gpufleet.holders.slurm.records import GpuFiles, GresUse, JobRecord, ListedJob
from gpufleet.model.catalogue import CATALOGUE, MetricKind, Subject
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState, Holding, HoldingVerdict, Share
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import to_ns
from gpufleet.ports.holder import HolderClaim
from gpufleet.runtime import run_to_end
from tests.support.pages import shown
from tests.support.passes import gpu
from tests.support.pod_resources import encode_list
from tests.support.snapshots import EXAMPLE_GUEST, example_snapshot, held_snapshot, holding

STATS = AgentStats(started_at=0, lanes={})

Series = dict[frozenset[tuple[str, str]], float]


def families(page: bytes, name: str) -> Series:
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == name
    }


def labelled(series: Series, **labels: str) -> list[dict[str, str]]:
    return [dict(known) for known in series if labels.items() <= dict(known).items()]


def test_each_holder_is_one_info_series() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_INFO)

    (sharer,) = labelled(found, pod="infer-b")
    assert (sharer["namespace"], sharer["container"], sharer["share"]) == ("ml", "main", "timeslice")
    assert (sharer["owner_kind"], sharer["owner_name"]) == ("Job", "train")
    assert len(labelled(found, kind="mig")) == 2
    assert set(found.values()) == {1}


def test_queue_of_a_pod_is_no_partition() -> None:
    pod = holder_labels(holding(Holder(kind=HolderKind.POD, id="uid-a", queue="research")))
    job = holder_labels(holding(Holder(kind=HolderKind.JOB, id="1", queue="gpu")))
    assert (pod["queue"], job["partition"]) == ("research", "gpu")
    assert "partition" not in pod
    assert "queue" not in job


def test_virtual_machine_of_a_launcher_pod_is_named() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_INFO)

    (launcher,) = labelled(found, side="pci_only")
    assert (launcher["vm_uid"], launcher["pod"]) == (EXAMPLE_GUEST, "virt-launcher-vm-x2x4z")


def test_quotes_and_backslashes_of_a_pod_name_are_escaped() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_INFO)

    assert labelled(found, pod='tr"ain\\0')


HOSTILE = '\x1b[2J\u202e"} 1\nup 0\n\\' + "x" * 10_000


def hostile_claims() -> list[HolderClaim]:
    """Return claims of a pod and a job whose users chose every text, as the sources read them."""
    container = {"name": HOSTILE, "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": ["nvidia0"]}]}
    pods = parse_pods(encode_list([{"namespace": HOSTILE, "name": HOSTILE, "containers": [container]}]))
    listed = ListedJob(12, "12", HOSTILE, HOSTILE, HOSTILE)
    job = JobRecord(
        listed=listed,
        array_job="",
        array_task=HOSTILE,
        het_job="",
        het_offset="",
        user=HOSTILE,
        qos=HOSTILE,
        partition=HOSTILE,
        state="RUNNING",
        started=1,
        nodes=1,
        gpus=1,
        gres=(("n", (GresUse("gpu", "", 1, (0,)),)),),
    )
    gpus = SlurmNodeGpus(entries=(GpuFiles("", ("/dev/nvidia0",)),))
    return [*map_pods(pods, PodIdentities(NodeFolders(), pods), {}), *claims_of(job, {"n": gpus})]


@pytest.mark.parametrize("dialect", [*(one.name for one in DIALECTS), l9gpu.NAME])
@pytest.mark.parametrize("openmetrics", [False, True])
def test_hostile_names_are_bounded_and_escaped_on_every_page(dialect: str, openmetrics: bool) -> None:
    for claim in hostile_claims():
        own = msgspec.structs.replace(holding(claim.holder), container=claim.container)
        holders = DeviceHolders(state=HolderState.HELD, holdings=(own,))
        plain = example_snapshot()
        devices = tuple(msgspec.structs.replace(one, holders=holders) for one in plain.devices)
        page = shown(
            AgentPages((dialect,), holder_labels=True),
            msgspec.structs.replace(plain, devices=devices),
            STATS,
            openmetrics=openmetrics,
        ).decode()
        assert all(line.isprintable() and len(line) < 8_000 for line in page.split("\n"))
        without = shown(AgentPages((dialect,)), plain, STATS, openmetrics=openmetrics).decode()
        names = {line.partition("{")[0] for line in page.splitlines() if not line.startswith("#")}
        known = {line.partition("{")[0] for line in without.splitlines() if not line.startswith("#")}
        assert names - known <= {HOLDER_INFO, HOLDER_STATE}  # no text makes a series of its own
        if not openmetrics:
            assert list(text_string_to_metric_families(page))


def test_state_series_are_one_per_state() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_STATE)
    states = {dict(labels)["state"]: value for labels, value in found.items() if dict(labels)["kind"] == "mig"}

    assert states == {"held": 1, "free": 0, "unknown": 0}


def test_remote_write_has_the_series_of_the_page() -> None:
    pushed = MetricsPage()
    run_to_end(add_native(pushed, held_snapshot()))
    page = PrometheusExporter().render(held_snapshot())
    for family in (HOLDER_INFO, HOLDER_STATE):
        assert families(pushed.encode(), family) == families(page, family)


def test_dcgm_page_has_one_series_per_holder() -> None:
    page = MetricsPage()
    add_dcgm(page, held_snapshot())
    used = families(page.encode(), "DCGM_FI_DEV_FB_USED")

    assert {labels["pod"] for labels in labelled(used, GPU_I_ID="1")} == {"infer-a", "infer-b"}


def test_only_holder_is_none_for_shared_or_contradicted_devices() -> None:
    pod = holding(Holder(kind=HolderKind.POD, id="uid", name="a", namespace="ml"))
    job = holding(Holder(kind=HolderKind.JOB, id="12"), Share.MPS)

    assert only_holder(None) is None
    assert only_holder(DeviceHolders(state=HolderState.HELD, holdings=(pod,))) is pod
    assert only_holder(DeviceHolders(state=HolderState.HELD, holdings=(pod, job))) is None
    unknown = holding(pod.holder)
    for verdict in (HoldingVerdict.CONFLICT, HoldingVerdict.UNKNOWN):
        contradicted = msgspec.structs.replace(unknown, verdict=verdict)
        assert only_holder(DeviceHolders(state=HolderState.HELD, holdings=(contradicted,))) is None
    assert only_holder(DeviceHolders(state=HolderState.UNKNOWN, holdings=(pod,))) is None


def test_holding_covers_instants_from_its_start() -> None:
    since = msgspec.structs.replace(holding(Holder(kind=HolderKind.JOB, id="12")), since=50)
    holders = DeviceHolders(state=HolderState.HELD, holdings=(since,))

    assert holder_at(holders, 49) is None
    assert holder_at(holders, 50) is since


def test_pod_without_uid_has_no_uid_label() -> None:
    labels = holder_labels(holding(Holder(kind=HolderKind.POD, id="ml/a", name="a", namespace="ml")))

    assert labels["holder_id"] == "ml/a"
    assert "pod_uid" not in labels


def samples(page: bytes) -> list[bytes]:
    return sorted(line for line in page.splitlines() if not line.startswith(b"#"))


def page_with_labels(snapshot: Snapshot) -> bytes:
    return shown(AgentPages(holder_labels=True), snapshot, STATS)


def test_series_of_a_held_device_name_its_only_holder() -> None:
    page = page_with_labels(held_snapshot())

    (labels,) = labelled(families(page, "gpufleet_gpu_power_watts"), uuid=gpu(0).uuid or "")
    assert (labels["namespace"], labels["pod"], labels["container"]) == ("ml", 'tr"ain\\0', "main")
    assert "job_id" not in labels
    (sharers,) = labelled(families(page, "gpufleet_gpu_memory_used_bytes"), kind="mig")
    assert not sharers.keys() & set(SERIES_LABELS)
    for family in (GPU_INFO, ABSENT, MEASURED):
        assert labelled(families(page, family), pod="virt-launcher-vm-x2x4z" if family == ABSENT else 'tr"ain\\0')


def test_page_without_holder_labels_is_unchanged_by_holders() -> None:
    def without(snapshot: Snapshot) -> list[str]:
        lines = PrometheusExporter().render(snapshot).decode().splitlines()
        return [line for line in lines if "gpufleet_gpu_holder_" not in line]

    assert without(held_snapshot()) == without(example_snapshot())


def test_no_label_is_written_twice_in_a_series() -> None:
    for line in page_with_labels(held_snapshot()).decode().splitlines():
        names = re.findall(r'[{,](\w+)="', re.sub(r"\\.", "", line))
        assert len(names) == len(set(names)), line


def test_holder_labels_are_names_of_no_dimension_or_device_label() -> None:
    dims = {dim for metric in CATALOGUE.values() for dim in metric.dims}
    of_devices = [metric for metric in CATALOGUE.values() if Subject.MACHINE not in metric.subjects]
    texts = {metric.name.partition("_")[2] for metric in of_devices if metric.kind is MetricKind.INFO}
    own = {name for device in held_snapshot().devices for name in device_labels(device)}

    assert not set(SERIES_LABELS) & (dims | texts | own)


@pytest.mark.parametrize("holder_labels", [False, True])
def test_remote_write_has_every_series_of_a_held_page(holder_labels: bool) -> None:
    pushed = MetricsPage()
    run_to_end(add_native(pushed, held_snapshot(), holder_labels=holder_labels))
    page = NativePage(holder_labels=holder_labels)
    run_to_end(page.update(held_snapshot()))

    assert samples(pushed.encode()) == samples(write_page(page.sections(), PageFormat.TEXT))


def test_value_measured_before_the_holding_is_not_pushed_with_its_labels() -> None:
    snapshot = held_snapshot()
    power = snapshot.devices[0].readings["gpu_power_watts"].measured_at
    assert power is not None

    def pushed(since: int) -> list[dict[str, str]]:
        def later(device: Device) -> Device:
            assert device.holders is not None
            holdings = tuple(msgspec.structs.replace(one, since=since) for one in device.holders.holdings)
            return msgspec.structs.replace(device, holders=msgspec.structs.replace(device.holders, holdings=holdings))

        page = MetricsPage()
        held = msgspec.structs.replace(snapshot, devices=tuple(map(later, snapshot.devices)))
        run_to_end(add_native(page, held, holder_labels=True))
        return labelled(families(page.encode(), "gpufleet_gpu_power_watts"), uuid=gpu(0).uuid or "")

    assert ["pod" in labels for labels in pushed(to_ns(power))] == [True]
    assert ["pod" in labels for labels in pushed(to_ns(power) + 1000)] == [False]


def test_change_of_holder_is_written() -> None:
    pages, before = AgentPages(holder_labels=True), example_snapshot()
    free = msgspec.structs.replace(before, devices=before.devices[1:])
    for snapshot in (before, held_snapshot(), before, held_snapshot(), free):
        assert shown(pages, snapshot, STATS) == page_with_labels(snapshot)


# Which readings name a holder


def with_holders(*holdings: Holding, at: int = 0) -> Snapshot:
    """Return the example with the given holdings of its first GPU, which begin `at` nanoseconds after its power."""
    snapshot = example_snapshot()
    measured = snapshot.devices[0].readings["gpu_power_watts"].measured_at
    assert measured is not None
    since = to_ns(measured) + at
    own = tuple(msgspec.structs.replace(one, since=since) for one in holdings)
    counted = {ANY_XID: Reading(value=0, reader="kmsg", measured_at=measured)}
    first = msgspec.structs.replace(
        snapshot.devices[0],
        readings={**snapshot.devices[0].readings, **counted},
        holders=DeviceHolders(state=HolderState.HELD, holdings=own),
    )
    return msgspec.structs.replace(snapshot, devices=(first, *snapshot.devices[1:]))


def dcgm_pods(snapshot: Snapshot, family: str = "DCGM_FI_DEV_POWER_USAGE") -> list[str]:
    page = MetricsPage()
    add_dcgm(page, snapshot)
    return sorted(labels.get("pod", "") for labels in labelled(families(page.encode(), family), UUID=gpu(0).uuid or ""))


def pod(name: str, verdict: HoldingVerdict = HoldingVerdict.AGREED) -> Holding:
    one = holding(Holder(kind=HolderKind.POD, id=f"uid-{name}", name=name, namespace="ml"))
    return msgspec.structs.replace(one, verdict=verdict)


def test_dcgm_series_name_no_holder_that_is_not_certain() -> None:
    assert dcgm_pods(with_holders(pod("a"))) == ["a"]
    for verdict in (HoldingVerdict.UNKNOWN, HoldingVerdict.CONFLICT):
        assert dcgm_pods(with_holders(pod("a", verdict))) == [""]
        assert dcgm_pods(with_holders(pod("a", verdict), pod("b"))) == ["b"]


def test_dcgm_value_measured_before_the_holding_has_no_holder() -> None:
    assert dcgm_pods(with_holders(pod("b"), at=1_000)) == [""]
    earlier, later = with_holders(pod("a")), with_holders(pod("b"), at=1_000)
    holders = (earlier.devices[0].holders, later.devices[0].holders)
    both = tuple(one.holdings[0] for one in holders if one is not None)
    first = msgspec.structs.replace(earlier.devices[0], holders=DeviceHolders(state=HolderState.HELD, holdings=both))
    assert dcgm_pods(msgspec.structs.replace(earlier, devices=(first, *earlier.devices[1:]))) == ["a"]


def test_dcgm_count_of_a_window_before_the_holding_has_no_holder() -> None:
    held = with_holders(pod("a"), pod("b"))
    start = to_ns(held.measured_at) - WINDOW_MS * 1_000_000
    measured = held.devices[0].readings[ANY_XID].measured_at
    assert measured is not None

    assert dcgm_pods(held, XID_COUNT) == [""]
    assert dcgm_pods(with_holders(pod("a"), pod("b"), at=start - to_ns(measured)), XID_COUNT) == ["a", "b"]


def test_dcgm_series_have_uid_and_labels_of_pods_on_request() -> None:
    labels = {"app.kubernetes.io/name": "train", "app_kubernetes_io_name": "other", "UUID": "x", "pod": "y", "7": "z"}
    labels |= {"__name__": "up", "..a": "b", "quote": '"\n'}
    own = Holder(kind=HolderKind.POD, id="uid-a", name="a", namespace="ml", labels=labels)
    snapshot = with_holders(holding(own), holding(Holder(kind=HolderKind.POD, id="ml/b", name="b", namespace="ml")))
    page = MetricsPage()
    add_dcgm(page, snapshot, pod_labels=True)
    found = {
        labels["pod"]: labels
        for labels in labelled(families(page.encode(), "DCGM_FI_DEV_POWER_USAGE"), UUID=gpu(0).uuid or "")
    }

    assert found["a"].items() >= {
        "pod_uid": "uid-a", "app_kubernetes_io_name": "train", "_7": "z", "quote": '"\n', "namespace": "ml",
    }.items()  # fmt: skip
    assert not {"__name__", "__a", "7"} & found["a"].keys()
    assert "pod_uid" not in found["b"]
    assert dcgm_pods(snapshot) == ["a", "b"]
    names = [re.findall(r'[{,](\w+)="', re.sub(r"\\.", "", line)) for line in page.encode().decode().splitlines()]
    assert all(len(one) == len(set(one)) for one in names)


def test_dcgm_series_of_many_pod_labels_are_bounded() -> None:
    labels = {f"label-{number:03}": "x" for number in range(100)}
    assert len(pod_metadata(holding(Holder(kind=HolderKind.POD, id="u", labels=labels)))) == 33
    assert pod_metadata(holding(Holder(kind=HolderKind.JOB, id="1", labels=labels))) == {}


def test_pulled_value_measured_before_the_holding_has_no_holder() -> None:
    def pods(snapshot: Snapshot) -> list[bool]:
        found = families(page_with_labels(snapshot), "gpufleet_gpu_power_watts")
        return ["pod" in labels for labels in labelled(found, uuid=gpu(0).uuid or "")]

    assert pods(with_holders(pod("a"), at=1_000)) == [False]
    assert pods(with_holders(pod("a"))) == [True]


def test_line_of_an_unchanged_value_gets_its_holder_with_the_next_measurement() -> None:
    held = with_holders(pod("a"), at=1_000)
    readings = {
        name: msgspec.structs.replace(reading, measured_at=reading.measured_at + dt.timedelta(seconds=1))
        for name, reading in held.devices[0].readings.items()
        if reading.measured_at is not None
    }
    later = msgspec.structs.replace(held.devices[0], readings=readings)
    again = msgspec.structs.replace(held, devices=(later, *held.devices[1:]))
    pages = AgentPages(holder_labels=True)
    for snapshot in (held, again, held):
        assert shown(pages, snapshot, STATS) == page_with_labels(snapshot)


def test_two_containers_of_a_pod_are_one_holder() -> None:
    both = [msgspec.structs.replace(pod("a"), container=name, since=since) for name, since in (("x", 7), ("y", 5))]
    only = only_holder(DeviceHolders(state=HolderState.HELD, holdings=tuple(both)))
    assert only is not None
    assert (only.holder.name, only.container, only.container_id, only.since) == ("a", "", "", 5)

    left = msgspec.structs.replace(both[0], verdict=HoldingVerdict.UNKNOWN)
    only = only_holder(DeviceHolders(state=HolderState.HELD, holdings=(left, both[1])))
    assert only is not None
    assert only.container == "y"
