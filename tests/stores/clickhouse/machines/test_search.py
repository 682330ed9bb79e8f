"""Which machines tell of a view or a text: by the newest word of each, within a cluster."""

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept

T0 = 1_700_000_000 * NANOS
VGPU = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U-1", instance="7", parent="gpu/GPU-1")


def told(vm: str, at: int = T0, view: View = VGPU) -> Sample:
    values = {"vgpu_vm_id": vm, "vgpu_vm_id_kind": "uuid", "gpu_memory_used_bytes": 1}
    return Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values=values)  # type: ignore[arg-type]


def test_the_newest_text_counts(store: ClickHouseStore, cluster: str) -> None:
    for number, (machine, sample) in enumerate(
        [("m-a", told("vm-1")), ("m-b", told("vm-1")), ("m-b", told("vm-2", T0 + NANOS)), ("m-c", told("vm-3"))]
    ):
        batch = accept(cluster, machine, [sample], received_at=sample.measured_at + NANOS)
        store.write([batch], f"{cluster}-{number}")
    store.write([accept(f"{cluster}-x", "m-a", [told("vm-3")])], f"{cluster}-x")

    assert store.reporters_of_text(cluster, "vgpu_vm_id", "vm-1") == ("m-a",)
    assert store.reporters_of_text(cluster, "vgpu_vm_id", "vm-2") == ("m-b",)
    assert store.reporters_of_text(cluster, "vgpu_vm_id", "vm-4") == ()
    assert store.reporters_of_text(cluster, "vgpu_vm_id_kind", "uuid") == ("m-a", "m-b", "m-c")
    assert store.reporters_of_text(cluster, "vgpu_type", "vm-1") == ()


def test_a_view_is_found_on_every_machine_that_told_of_it(store: ClickHouseStore, cluster: str) -> None:
    other = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U-2", instance="8")
    store.write([accept(cluster, "m-a", [told("vm", view=other)])], f"{cluster}-a")
    store.write([accept(cluster, "m-b", [told("vm"), told("vm", view=other)])], f"{cluster}-b")
    assert store.reporters_of_view(cluster, other.key) == ("m-a", "m-b")
    assert store.reporters_of_view(cluster, VGPU.key) == ("m-b",)
    assert store.reporters_of_view(cluster, "vgpu/U-3") == ()
