"""Search for the machines that report a view or a text: by the newest sample of each, within a cluster."""

import msgspec

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept

T0 = 1_700_000_000 * NANOS
SLOT = "0000:01:00.0"
VGPU = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U-1", instance="7", parent="gpu/GPU-1")


def vgpu_sample(vm: str, at: int = T0, view: View = VGPU) -> Sample:
    values = {"vgpu_vm_id": vm, "vgpu_vm_id_kind": "uuid", "gpu_memory_used_bytes": 1}
    return Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values=values)  # type: ignore[arg-type]


def test_text_search_uses_the_newest_sample(store: ClickHouseStore, cluster: str) -> None:
    for number, (machine, sample) in enumerate(
        [
            ("m-a", vgpu_sample("vm-1")),
            ("m-b", vgpu_sample("vm-1")),
            ("m-b", vgpu_sample("vm-2", T0 + NANOS)),
            ("m-c", vgpu_sample("vm-3")),
        ]
    ):
        batch = accept(cluster, machine, [sample], received_at=sample.measured_at + NANOS)
        store.write([batch], f"{cluster}-{number}")
    store.write([accept(f"{cluster}-x", "m-a", [vgpu_sample("vm-3")])], f"{cluster}-x")

    assert store.reporters_of_text(cluster, "vgpu_vm_id", "vm-1") == ("m-a",)
    assert store.reporters_of_text(cluster, "vgpu_vm_id", "vm-2") == ("m-b",)
    assert store.reporters_of_text(cluster, "vgpu_vm_id", "vm-4") == ()
    assert store.reporters_of_text(cluster, "vgpu_vm_id_kind", "uuid") == ("m-a", "m-b", "m-c")
    assert store.reporters_of_text(cluster, "vgpu_type", "vm-1") == ()
    texts = [(one.machine, one.at - T0, one.text) for one in store.texts_of_views(cluster, "vgpu_vm_id", "vm-1")]
    assert texts == [("m-a", 0, "vm-1"), ("m-b", 0, "vm-1"), ("m-b", NANOS, "vm-2")]
    assert store.texts_of_views(cluster, "vgpu_vm_id", "vm-4") == ()


def test_texts_of_machines_are_found_with_their_times(store: ClickHouseStore, cluster: str) -> None:
    for number, (machine, values) in enumerate(
        [
            ("m-a", {"host_instance_type": "p5", "host_kernel_release": "6.1"}),
            ("m-a", {"host_kernel_release": "6.1"}),
            ("m-a", {"host_instance_type": "p4"}),
            ("m-b", {"host_instance_type": "p5"}),
            ("m-c", {"host_instance_type": "p5"}),
        ]
    ):
        at = T0 + number * NANOS
        sample = Sample(view=None, reader="host", lane=Lane.STATIC, measured_at=at, values={**values})
        store.write([accept(cluster, machine, [sample], received_at=at + NANOS)], f"{cluster}-{number}")
    others = [f"{number:032x}" for number in range(5_000)]  # more than a server accepts in one parameter
    found = store.texts_of_machines(cluster, ["m-a", *others, "m-b"], "host_instance_type")
    assert [(one.machine, one.at - T0, one.text) for one in found] == [
        ("m-a", 0, "p5"),
        ("m-a", 2 * NANOS, "p4"),
        ("m-b", 3 * NANOS, "p5"),
    ]


def test_view_is_found_on_every_machine_that_reported_it(store: ClickHouseStore, cluster: str) -> None:
    other = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U-2", instance="8")
    store.write([accept(cluster, "m-a", [vgpu_sample("vm", view=other)])], f"{cluster}-a")
    store.write([accept(cluster, "m-b", [vgpu_sample("vm"), vgpu_sample("vm", view=other)])], f"{cluster}-b")
    assert store.reporters_of_view(cluster, other.key) == ("m-a", "m-b")
    assert store.reporters_of_view(cluster, VGPU.key) == ("m-b",)
    assert store.reporters_of_view(cluster, "vgpu/U-3") == ()


def test_gpus_that_several_machines_reported_are_found(store: ClickHouseStore, cluster: str) -> None:
    moved, kept = (View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{n}", pci_address=SLOT) for n in (1, 2))
    inside = msgspec.structs.replace(kept, side=Side.GUEST)
    unnamed = View(kind=ViewKind.GPU, side=Side.HOST, pci_address=SLOT)
    for machine, views in (("m-a", [moved, kept, unnamed]), ("m-b", [moved, inside, unnamed])):
        samples = [Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=T0, values={}) for view in views]
        store.write([accept(cluster, machine, samples)], f"{cluster}-{machine}")
    assert store.shared_gpus(cluster) == {moved.key: ("m-a", "m-b")}
    assert store.shared_gpus(f"{cluster}-x") == {}


def test_views_are_found_by_the_start_of_their_key(store: ClickHouseStore, cluster: str) -> None:
    other = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U-2", instance="8")
    store.write([accept(cluster, "m-a", [vgpu_sample("vm", view=other)])], f"{cluster}-a")
    store.write([accept(cluster, "m-b", [vgpu_sample("vm"), vgpu_sample("vm", view=other)])], f"{cluster}-b")
    every = ((VGPU.key, "m-b"), (other.key, "m-a"), (other.key, "m-b"))
    assert store.views_with_prefix(cluster, ["gpu/U-", "vgpu/U-"], 10) == every
    assert store.views_with_prefix(cluster, ["vgpu/U-"], 2) == every[:2]
    assert store.views_with_prefix(cluster, ["vgpu/U-2", "vgpu/U%"], 10) == every[1:]
    assert store.views_with_prefix(cluster, ["mig/U-2"], 10) == ()
