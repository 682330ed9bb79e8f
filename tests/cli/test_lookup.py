"""Short ids of devices."""

import pytest

from gpufleet.cli.lookup import device_id, short_id, short_ids

UUID = "5a61abb5-f88e-4df2-8e2f-bd67b3cf7a55"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (f"GPU-{UUID}", "GPU-5a61abb5"),
        (f"MIG-{UUID}", "MIG-5a61abb5"),
        (UUID, "5a61abb5"),
        ("GPU-0", "GPU-0"),
        ("node-a/1b:00.0", "node-a/1b:00.0"),
    ],
)
def test_uuid_is_shortened_and_other_names_are_not(text: str, short: str) -> None:
    assert short_id(text) == short


def test_short_ids_of_a_list_are_unique() -> None:
    ids = [f"GPU-{UUID}", f"GPU-{UUID[:9]}0{UUID[10:]}", f"GPU-0{UUID[1:]}", f"MIG-{UUID}"]
    found = short_ids(ids)
    assert list(found.values()) == ["GPU-5a61abb5-f88e", "GPU-5a61abb5-088e", "GPU-0a61abb5", "MIG-5a61abb5"]
    nearly = [f"GPU-{UUID}", f"GPU-{UUID[:-1]}0"]
    assert short_ids([*nearly, nearly[0]]) == dict(zip(nearly, nearly, strict=True))


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (f"gpu/GPU-{UUID}", f"GPU-{UUID}"),
        ("gpu/pci/0000:1b:00.0", "node-a/1b:00.0"),
        ("gpu/pci/0001:1b:00.0", "node-a/0001:1b:00.0"),
        ("machine", "machine"),
    ],
)
def test_device_without_uuid_is_named_by_machine_and_address(view: str, name: str) -> None:
    assert device_id(view, "node-a") == name
