"""Virtual machines on the agent's page: identity labels on every series, and no values of the host."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.dcgm_exporter import add_dcgm
from gpufleet.exporters.exposition import MetricsPage, PageFormat, write_page
from gpufleet.exporters.kubevirt import add_kubevirt
from gpufleet.exporters.prometheus import PrometheusExporter
from gpufleet.exporters.table import TableExporter
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Guest, Host, Snapshot
from gpufleet.model.view import Side, ViewKind
from tests.support.snapshots import example_snapshot

UID = "6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f"


def device(uuid: str, **readings: float) -> Device:
    return Device(
        key=f"gpu/{uuid}",
        kind=ViewKind.GPU,
        side=Side.GUEST,
        uuid=uuid,
        pci_address="0000:01:00.0",
        index=0,
        name="NVIDIA H100",
        readings={name: Reading(value=value, reader="nvidia_smi") for name, value in readings.items()},
    )


def with_guest(*devices: Device, name: str = "train-0") -> Snapshot:
    problem = Reading(value="message of a driver", reader="guests")
    state = Reading(value="ok", reader="guests")
    guest = Guest(
        machine=Machine(name=f"ml/{name}", kind=MachineKind.GUEST, system_uuid=UID),
        namespace="ml",
        name=name,
        vm_uuid=UID,
        state="ok",
        devices=devices,
        host=Host(readings={"guest_state": state, "guest_problem": problem}),
    )
    return msgspec.structs.replace(example_snapshot(), guests=(guest,))


def series(page: bytes, *, ours: bool = True) -> list[tuple[str, dict[str, str], float]]:
    found = [
        (one.name, one.labels, one.value)
        for family in text_string_to_metric_families(page.decode())
        for one in family.samples
    ]
    return [one for one in found if (one[1].get("vm_uid") == UID) is ours]


def dcgm(snapshot: Snapshot) -> bytes:
    page = MetricsPage()
    clocks = ClockCounts()
    clocks.take(snapshot)
    add_dcgm(page, snapshot, clocks)
    return write_page(page.sections(), PageFormat.TEXT)


def test_every_series_of_a_guest_has_its_identity() -> None:
    snapshot = with_guest(device("GPU-guest", gpu_utilization_ratio=0.37, gpu_memory_used_bytes=2**30))
    page = PrometheusExporter().render(snapshot)
    own = series(page)
    assert {name for name, _, _ in own} >= {"gpufleet_gpu_utilization_ratio", "gpufleet_guest_state"}
    for _, labels, _ in own:
        assert (labels["namespace"], labels["vm_name"]) == ("ml", "train-0")
    assert series(page, ours=False) == series(PrometheusExporter().render(example_snapshot()), ours=False)
    assert b"message of a driver" not in page


def test_dcgm_series_include_gpus_of_guests() -> None:
    snapshot = with_guest(device("GPU-guest", gpu_utilization_ratio=0.37, gpu_memory_used_bytes=2**30))
    own = {name: (labels, value) for name, labels, value in series(dcgm(snapshot))}
    labels, value = own["DCGM_FI_DEV_GPU_UTIL"]
    assert value == 37
    assert own["DCGM_FI_DEV_FB_USED"][1] == 1024
    assert labels["UUID"] == "GPU-guest"
    assert labels["Hostname"] == snapshot.node.name
    assert (labels["namespace"], labels["vm_name"], labels["vm_uid"]) == ("ml", "train-0", UID)


def test_guest_claiming_a_host_uuid_gets_none_of_its_values() -> None:
    host = example_snapshot()
    victim = next(one for one in host.devices if one.side is Side.HOST and one.uuid)
    assert victim.uuid is not None
    device_ = device(victim.uuid, gpu_utilization_ratio=0.01, gpu_xid_events_total=3)
    page = dcgm(with_guest(device_))
    assert {name for name, _, _ in series(page)} == {"DCGM_FI_DEV_GPU_UTIL"}
    assert series(page, ours=False) == series(dcgm(host), ours=False)


def test_hostile_name_cannot_leave_its_label() -> None:
    page = PrometheusExporter().render(with_guest(name='x"} 1\ninjected 2\\'))
    assert {labels["vm_name"] for _, labels, _ in series(page)} == {'x"} 1\ninjected 2\\'}
    assert "injected" not in {name for name, _, _ in series(page, ours=False)}


def test_table_lists_guests_below_their_host() -> None:
    snapshot = with_guest(device("GPU-guest", gpu_utilization_ratio=0.37))
    screen = TableExporter().render(snapshot).decode()
    host, _, own = screen.partition("guest    ml/train-0 6f1ed002-ab5 ok")
    assert "GPU-guest" in own
    assert "37 %" in own
    assert "GPU-guest" not in host
    broken = msgspec.structs.replace(snapshot.guests[0], state="no_driver", detail="text\x1b[2J of it", devices=())
    screen = TableExporter().render(msgspec.structs.replace(snapshot, guests=(broken,))).decode()
    assert "no_driver · text?[2J of it" in screen


def test_vmi_labels_are_on_series_of_kubevirt_only() -> None:
    snapshot = with_guest(device("GPU-1", gpu_power_watts=312.25))
    labels = {"team": 'a"b\\c\nd', "example.com/tier-1": "x", "example.com/tier.1": "y", "név": "z"}
    guest = msgspec.structs.replace(snapshot.guests[0], labels=labels)
    page = MetricsPage()
    add_kubevirt(page, msgspec.structs.replace(snapshot, guests=(guest,)))
    (found,) = [
        one.labels
        for family in text_string_to_metric_families(write_page(page.sections(), PageFormat.TEXT).decode())
        for one in family.samples
        if one.name == "kubevirt_vmi_gpu_power_usage_milliwatts"
    ]
    assert {name: value for name, value in found.items() if name.startswith("kubernetes_vmi_label_")} == {
        "kubernetes_vmi_label_team": 'a"b\\c\nd',
        "kubernetes_vmi_label_example_com_tier_1": "x",
        "kubernetes_vmi_label_n_v": "z",
    }
    assert (found["namespace"], found["name"], found["gpu_uuid"]) == ("ml", "train-0", "GPU-1")
