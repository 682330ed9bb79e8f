"""Pages under l9gpu's names."""

import datetime as dt
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.exposition import prometheus_name
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Guest, Snapshot
from gpufleet.model.time import to_ns
from gpufleet.model.view import Side, ViewKind
from tests.support.pages import agent_page
from tests.support.snapshots import example_guest, example_snapshot, holding

NAMES = Path(__file__).parents[1] / "data" / "l9gpu" / "names.txt"
STATS = AgentStats(started_at=1, lanes={})
SAMPLE = "gpu_utilization"

Series = dict[frozenset[tuple[str, str]], float]


def families(snapshot: Snapshot) -> dict[str, Series]:
    """Return the l9gpu series of a page by name; fail at duplicates."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(agent_page(snapshot, STATS, ["l9gpu"]).decode()):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = frozenset(sample.labels.items())
            assert labels not in series
            series[labels] = sample.value
    return {name: series for name, series in found.items() if not name.startswith("gpufleet_")}


def first_gpu(snapshot: Snapshot) -> Device:
    return next(one for one in snapshot.devices if one.kind is ViewKind.GPU and one.readings.get("gpu_power_watts"))


def with_holder(holder: Holder, since: int = 1) -> Snapshot:
    """Return the example with one holder of every device."""
    snapshot = example_snapshot()
    own = msgspec.structs.replace(holding(holder), since=since)
    holders = DeviceHolders(state=HolderState.HELD, holdings=(own,))
    devices = tuple(msgspec.structs.replace(one, holders=holders) for one in snapshot.devices)
    return msgspec.structs.replace(snapshot, devices=devices)


def labels_of(snapshot: Snapshot, name: str = SAMPLE) -> dict[str, str]:
    """Return the labels of the only series of a family."""
    (labels,) = families(snapshot)[name]
    return dict(labels)


def test_series_of_a_gpu_are_those_of_l9gpu() -> None:
    gpu = first_gpu(example_snapshot())
    found = families(example_snapshot())
    assert found.keys() <= {prometheus_name(line.split()[0]) for line in NAMES.read_text().splitlines()}
    assert {"gpu_power_draw", "gpu_memory_used_percent", "gpu_energy_consumption"} <= found.keys()
    ((labels, value),) = found[SAMPLE].items()
    assert dict(labels) == {
        "gpu_index": str(gpu.index),
        "gpu_uuid": gpu.uuid,
        "gpu_model": "NVIDIA H200",
        "host_name": example_snapshot().node.name,
        "gpu_task_type": "compute",
    }
    assert value == 0.0
    assert {dict(labels)["gpu_uuid"] for series in found.values() for labels in series} == {gpu.uuid}


def test_values_of_a_dimension_have_its_label() -> None:
    snapshot = example_snapshot()
    gpu = first_gpu(snapshot)
    dims = tuple(
        msgspec.structs.replace(dim, labels={"reason": "power_cap"}) for dim in gpu.dimensions if dim.value is not None
    )
    snapshot = msgspec.structs.replace(snapshot, devices=(msgspec.structs.replace(gpu, dimensions=dims),))
    ((labels, value),) = families(snapshot)["gpu_throttle_reason"].items()
    assert (dict(labels)["gpu_throttle_cause"], value) == ("power_software", 1.0)


def test_holders_have_the_labels_of_otlp() -> None:
    job = Holder(kind=HolderKind.JOB, id="12345", name="train", user="ada", queue="batch", account="ml")
    assert labels_of(with_holder(job)).items() >= {
        "job_id": "12345", "job_name": "train", "username": "ada", "partition": "batch", "account": "ml",
    }.items()  # fmt: skip
    pod = Holder(kind=HolderKind.POD, id="u-1", name="train-0", namespace="ml", labels={"app.kubernetes.io/name": "a"})
    assert labels_of(with_holder(pod)).items() >= {
        "k8s_namespace_name": "ml", "k8s_pod_name": "train-0", "k8s_container_name": "main",
        "k8s_pod_label_app_kubernetes_io_name": "a",
    }.items()  # fmt: skip


def test_value_from_before_the_holding_has_no_holder() -> None:
    at = first_gpu(example_snapshot()).readings["gpu_power_watts"].measured_at
    assert at is not None
    later = with_holder(Holder(kind=HolderKind.JOB, id="7", name="a"), since=to_ns(at) + 1)
    assert "job_id" not in labels_of(later, "gpu_power_draw")


def test_pod_labels_of_one_converted_name_give_one_label() -> None:
    pod = Holder(kind=HolderKind.POD, id="u", name="p", namespace="n", labels={"a/b": "1", "a.b": "2", "é": "3"})
    labels = labels_of(with_holder(pod))
    assert labels["k8s_pod_label_a_b"] == "2"
    assert all(name.isascii() for name in labels)


def test_guest_has_its_own_host_and_no_series_is_repeated() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    guest: Guest = example_guest()
    gpu = msgspec.structs.replace(
        guest.devices[0], readings={"gpu_power_watts": Reading(value=7.0, measured_at=at, reader="guests")}
    )
    unnamed = msgspec.structs.replace(gpu, uuid=None)
    passed = msgspec.structs.replace(gpu, side=Side.PCI_ONLY, uuid="GPU-passed")
    snapshot = msgspec.structs.replace(
        example_snapshot(),
        guests=(msgspec.structs.replace(guest, devices=(gpu, gpu, unnamed, passed)),),
    )
    by_host = {
        dict(labels)["host_name"]: (dict(labels), value)
        for labels, value in families(snapshot)["gpu_power_draw"].items()
    }
    labels, value = by_host.pop("ml/train-0")
    assert (labels["vm_name"], labels["gpu_uuid"], value) == ("train-0", gpu.uuid, 7.0)
    assert by_host.keys() == {snapshot.node.name}
