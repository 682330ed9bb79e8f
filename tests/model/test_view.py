"""Views of devices."""

import pytest

from gpufleet.model.view import view_of_key


@pytest.mark.parametrize("key", ["gpu/GPU-1", "mig/MIG-1", "gpu/pci/0000:01:00.0", "mig/instance/1/0@0000:01:00.0"])
def test_view_of_a_key_has_that_key(key: str) -> None:
    assert view_of_key(key).key == key
