"""Remote write requests as samples, for any split of a captured page."""

import struct
from pathlib import Path

import pytest

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.hub.imports.remote_write import host_of, read_request
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.time import NANOS

PAGES = Path(__file__).parents[2] / "data" / "exposition"
T0 = 1_700_000_000 * NANOS
STALE = struct.unpack("<d", bytes.fromhex("020000000000f07f"))[0]


def request(*points: tuple[ImportedSeries, float, int], stale: tuple[int, ...] = ()) -> WriteRequest:
    return WriteRequest(
        [one for one, _, _ in points],
        [value for _, value, _ in points],
        [at for _, _, at in points],
        list(stale),
        {},
        {},
    )


def series(name: str, /, **labels: str) -> ImportedSeries:
    return ImportedSeries(name, labels)


def test_captured_page_scraped_by_prometheus() -> None:
    page = TextParser().parse((PAGES / "dcgm-exporter-l40s-vm.txt").read_bytes())
    scraped = [
        ImportedSeries(one.name, {**one.labels, "instance": "10.0.0.7:9400", "job": "dcgm"}) for one in page.series
    ]
    up = series("up", instance="10.0.0.7:9400", job="dcgm")
    found = read_request(
        request(*((one, value, T0) for one, value in zip(scraped, page.values, strict=True)), (up, 1.0, T0))
    )
    (machine,) = found.machines
    assert machine.name == next(one.labels["Hostname"] for one in page.series if "Hostname" in one.labels)
    assert sum(found.others.values()) >= 1
    powers = {
        sample.view.uuid: sample.values["gpu_power_watts"]
        for sample in found.machines[machine]
        if sample.view is not None and "gpu_power_watts" in sample.values
    }
    assert powers == {
        one.labels["UUID"]: value
        for one, value in zip(page.series, page.values, strict=True)
        if one.name == "DCGM_FI_DEV_POWER_USAGE"
    }
    for sample in found.machines[machine]:
        assert (sample.measured_at, sample.provenance, sample.reader) == (
            T0,
            Provenance.IMPORTED,
            "remote_write/dcgm-exporter",
        )


def test_target_names_the_machine_if_the_exporter_does_not() -> None:
    power = "DCGM_FI_DEV_POWER_USAGE"
    found = read_request(
        request(
            (series(power, UUID="GPU-1", gpu="0", instance="node-1:9400"), 1.0, T0),
            (series(power, UUID="GPU-2", gpu="0", instance="node-2:9400"), 2.0, T0),
            (series(power, UUID="GPU-3", gpu="0"), 3.0, T0),
        )
    )
    assert {one.name for one in found.machines} == {"node-1", "node-2"}
    assert found.unattributed == 1


@pytest.mark.parametrize(
    ("name", "labels", "machine"),
    [
        # all-smi labels its machine `instance`, or `hostname` in some families; Prometheus also sets `instance`
        ("all_smi_gpu_utilization", {"gpu_uuid": "GPU-a", "exported_instance": "node-1"}, "node-1"),
        ("all_smi_gpu_utilization", {"gpu_uuid": "GPU-a", "instance": "node-1"}, "node-1"),  # honor_labels: true
        ("all_smi_gpu_utilization", {"gpu_uuid": "GPU-a", "node": "node-1"}, "node-1"),
        ("all_smi_gpu_utilization", {"gpu_uuid": "GPU-a"}, "10.0.0.1"),
        ("all_smi_cpu_utilization", {"hostname": "node-1", "exported_instance": "node-1"}, "node-1"),
        # an agent's page labels it `node`
        ("gpufleet_host_load_1m", {"exported_node": "node-1", "node": "k8s-1"}, "node-1"),
        # a Prometheus that federates from another Prometheus without honor_labels
        ("nvidia_smi_power_draw_watts", {"uuid": "1", "exported_instance": "gpu-1:9835", "node": "prom-0"}, "gpu-1"),
        ("nvidia_smi_power_draw_watts", {"uuid": "1", "exported_node": "gpu-1", "node": "prom-0"}, "gpu-1"),
        # dcgm-exporter in a pod without its node's name
        (
            "DCGM_FI_DEV_GPU_TEMP",
            {"UUID": "GPU-1", "Hostname": "exp-7k", "pod": "exp-7k", "node": "node-1"},
            "node-1",
        ),
        ("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-1", "Hostname": "exp-7k", "pod": "exp-7k"}, "exp-7k"),
        ("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-1", "Hostname": "node-1", "pod": "exp-7k", "node": "k8s-1"}, "node-1"),
    ],
)
def test_own_machine_name_wins_over_the_scraper(name: str, labels: dict[str, str], machine: str) -> None:
    series_of_target = ImportedSeries(name, {"instance": "10.0.0.1:9400", **labels})
    assert [one.name for one in read_request(request((series_of_target, 0.5, T0))).machines] == [machine]


def test_timestamps_stay_separate_and_a_stale_marker_is_an_absence() -> None:
    one = series("DCGM_FI_DEV_POWER_USAGE", UUID="GPU-1", gpu="0", Hostname="n")
    found = read_request(
        request((one, 1.0, T0), (one, 2.0, T0 + 15 * NANOS), (one, STALE, T0 + 30 * NANOS), stale=(2,))
    )
    values = {
        sample.measured_at: sample.values
        for sample in found.machines[Machine(name="n")]
        if "gpu_power_watts" in sample.values
    }
    assert values == {
        T0: {"gpu_power_watts": 1.0},
        T0 + 15 * NANOS: {"gpu_power_watts": 2.0},
        T0 + 30 * NANOS: {"gpu_power_watts": Absent(Reason.NO_DATA, "the source reported the end of the series")},
    }


def test_unknown_names_of_a_known_project_are_counted_by_name() -> None:
    found = read_request(
        request(
            (series("DCGM_FI_DEV_OF_TOMORROW", UUID="GPU-1", gpu="0", Hostname="n"), 1.0, T0),
            (series("DCGM_FI_DEV_OF_TOMORROW", UUID="GPU-2", gpu="1", Hostname="n"), 1.0, T0),
            (series("node_load1", instance="n:9100"), 1.0, T0),
        )
    )
    assert (dict(found.drift), sum(found.others.values()), found.machines) == (
        {"DCGM_FI_DEV_OF_TOMORROW": 2},
        1,
        {},
    )


def test_unknown_labels_are_counted_once_per_series() -> None:
    renamed = series("DCGM_FI_DEV_GPU_TEMP", gpu_uuid="GPU-1", gpu="0", Hostname="n", region="eu", exported_pod="p")
    write = request(
        (renamed, 50.0, T0),
        (series("DCGM_FI_DEV_POWER_USAGE", UUID="GPU-1", DCGM_FI_DEV_SERIAL="7", instance="n:1", region="eu"), 1.0, T0),
        (series("DCGM_FI_DEV_OF_TOMORROW", tomorrow="1"), 1.0, T0),  # labels of unknown metrics are not counted
        (series("node_load1", cpu="1"), 1.0, T0),
    )
    found = read_request(write)
    assert (dict(found.labels), found.unattributed) == ({"gpu_uuid": 1, "region": 2}, 1)
    assert read_request(write).labels == {}


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("node-1:9400", "node-1"),
        ("node-1", "node-1"),
        ("[2001:db8::7]:9400", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("http://node-1:9400/metrics", "http://node-1:9400/metrics"),
        ("", ""),
    ],
)
def test_host_of_a_target(instance: str, host: str) -> None:
    assert host_of(instance) == host


def test_names_too_long_for_a_batch_are_skipped() -> None:
    found = read_request(
        request(
            (series("DCGM_FI_DEV_POWER_USAGE", UUID="G" * 300, gpu="0", Hostname="n"), 1.0, T0),
            (series("DCGM_FI_DEV_POWER_USAGE", UUID="GPU-1", gpu="0", Hostname="n" * 300), 1.0, T0),
        )
    )
    assert found.machines == {}
    assert found.unattributed == 1


@pytest.mark.parametrize("name", [{"namespace": "ml", "vm_name": "train-0"}, {"vm_name": "node-1"}])
def test_guest_series_of_an_agent_do_not_belong_to_the_host(name: dict[str, str]) -> None:
    own = {"uuid": "GPU-1", "pci_address": "", "kind": "gpu", "name": "A", "node": "node-1", "instance": "node-1:9470"}
    guest = {**own, **name, "vm_uid": "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"}
    found = read_request(
        request(
            (ImportedSeries("gpufleet_gpu_power_watts", {**own, "side": "host"}), 300.0, T0),
            (ImportedSeries("gpufleet_gpu_power_watts", {**guest, "side": "guest"}), 400.0, T0),
        )
    )
    (machine,) = found.machines
    assert machine.name == "node-1"
    values = [sample.values.get("gpu_power_watts") for sample in found.machines[machine]]
    assert [value for value in values if value is not None] == [300.0]
    assert found.unattributed > 0


def test_holder_of_a_guests_gpu_is_not_of_the_host_of_its_name() -> None:
    own = {"UUID": "GPU-1", "Hostname": "n1", "exported_pod": "a", "exported_namespace": "x"}
    inside = {**own, "vm_name": "n1", "exported_pod": "b"}
    found = read_request(
        request(
            (series("DCGM_FI_DEV_POWER_USAGE", **own), 300.0, T0),
            (series("DCGM_FI_DEV_POWER_USAGE", **inside), 400.0, T0),
        )
    )
    assert {one.name for at in found.holders.values() for held in at.values() for one in held} == {"a"}


def test_holder_of_a_mig_device_does_not_hold_its_gpu() -> None:
    pods = {number: {"UUID": "GPU-1", "Hostname": "n1", "GPU_I_ID": number, "exported_pod": f"p{number}",
                     "exported_namespace": "x"} for number in ("3", "5")}  # fmt: skip
    families = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED")
    found = read_request(
        request(*[(series(family, **labels), 7.0, T0) for family in families for labels in pods.values()])
    )
    (at_views,) = found.holders.values()
    assert {view: {one.name for one in held} for (view, _), held in at_views.items()} == {
        f"mig/instance/GPU-1/{number}": {f"p{number}"} for number in pods
    }


def test_series_that_continues_with_other_labels_keeps_its_value() -> None:
    # One pod ends and another starts, so the scrape has a stale marker and a number.
    power = "DCGM_FI_DEV_POWER_USAGE"
    before = series(power, UUID="GPU-1", gpu="0", Hostname="n1", pod="a", namespace="x", container="c")
    after = series(power, UUID="GPU-1", gpu="0", Hostname="n1", pod="b", namespace="x", container="c")
    for series_points, stale in (
        (((before, STALE, T0), (after, 80.0, T0)), (0,)),
        (((after, 80.0, T0), (before, STALE, T0)), (1,)),
    ):
        (samples,) = read_request(request(*series_points, stale=stale)).machines.values()
        assert [one.values["gpu_power_watts"] for one in samples if "gpu_power_watts" in one.values] == [80.0]
