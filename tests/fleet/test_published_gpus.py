"""GPUs that a DRA driver publishes: identity, generations and completeness of pools."""

import pytest

from gpufleet.fleet.published_gpus import is_complete, newest_slices, published_gpus
from gpufleet.model.kubernetes import ClusterDevice, ClusterSlice

DRIVER = "gpu.nvidia.com"


def device(name: str, *, node: str = "gpu-1", **fields: str) -> ClusterDevice:
    return ClusterDevice(driver=DRIVER, pool="gpu-1", name=name, node=node, **fields)  # type: ignore[arg-type]


def gpu(number: int, **fields: str) -> ClusterDevice:
    known = {"kind": "gpu", "uuid": f"GPU-{number}", "pci_address": f"0000:0{number}:00.0"}
    return device(f"gpu-{number}", **{**known, **fields})


def pool_slice(
    *devices: ClusterDevice, driver: str = DRIVER, pool: str = "gpu-1", generation: int = 1, slices: int = 1
) -> ClusterSlice:
    return ClusterSlice(
        uid=f"{pool}-{generation}-{len(devices)}",
        name=pool,
        driver=driver,
        pool=pool,
        generation=generation,
        slices=slices,
        node="gpu-1",
        devices=devices,
    )


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([gpu(1), gpu(2)], 2),
        ([gpu(1), gpu(2, uuid="gpu-1", pci_address="")], 1),  # newer drivers write UUIDs in lower case
        ([gpu(1), device("gpu-vfio-0", kind="vfio", uuid="sha1-of-the-address", pci_address="0000:01:00.0")], 1),
        ([gpu(1), *(device(f"gpu-1-mig-{n}", kind="mig", parent_uuid="GPU-1") for n in range(7))], 1),
        (
            [
                device("m0", kind="mig", uuid="MIG-0", parent_uuid="GPU-1"),
                device("m1", kind="mig", parent_uuid="GPU-2"),
            ],
            2,
        ),
        ([device("m0", kind="mig", uuid="MIG-0", pci_address="0000:01:00.0"), gpu(1)], 1),
        ([device("m0", kind="mig", uuid="MIG-0")], None),  # it names no GPU
        ([device("m0", kind="mig", parent_uuid="GPU-1"), device("v", pci_address="0000:01:00.0"), gpu(1)], 1),
        ([device("gpu-0"), device("gpu-1")], 2),  # nothing shows that they are one
        ([], 0),
    ],
)
def test_devices_with_a_common_identity_are_one_gpu(devices: list[ClusterDevice], expected: int | None) -> None:
    assert published_gpus([pool_slice(*devices)], DRIVER) == {"gpu-1": expected}
    assert published_gpus([pool_slice(*reversed(devices))], DRIVER) == {"gpu-1": expected}


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = pool_slice(gpu(1), gpu(2), gpu(3), slices=1)
    new = pool_slice(gpu(1), generation=2)
    for slices in ([old, new], [new, old]):
        assert newest_slices(slices) == {(DRIVER, "gpu-1"): (new,)}
        assert published_gpus(slices, DRIVER) == {"gpu-1": 1}


def test_incomplete_pool_is_unknown() -> None:
    first, second = pool_slice(gpu(1), slices=2), pool_slice(gpu(2), gpu(3), slices=2)
    assert published_gpus([first], DRIVER) == {"gpu-1": None}
    assert published_gpus([first, second], DRIVER) == {"gpu-1": 3}
    assert published_gpus([first, second, pool_slice(gpu(1), generation=2, slices=2)], DRIVER) == {"gpu-1": None}
    assert not is_complete([pool_slice(gpu(1), slices=0)])


def test_node_with_an_incomplete_pool_is_unknown() -> None:
    whole, part = pool_slice(gpu(1)), pool_slice(gpu(2), pool="second", slices=2)
    assert published_gpus([whole, part], DRIVER) == {"gpu-1": None}
    assert published_gpus([whole, pool_slice(gpu(2), pool="second")], DRIVER) == {"gpu-1": 2}


def test_devices_count_for_their_own_node() -> None:
    shared = ClusterSlice(
        uid="u",
        name="rack",
        driver=DRIVER,
        pool="rack",
        slices=1,
        devices=(gpu(1), gpu(2, node="gpu-2"), gpu(3, node="")),
    )
    assert published_gpus([shared], DRIVER) == {"gpu-1": 1, "gpu-2": 1}


def test_other_drivers_are_left_out() -> None:
    assert published_gpus([pool_slice(gpu(1), driver="gpu.intel.com")], DRIVER) == {}
