"""Machine cache: the limit on machines per cluster."""

import pytest

from gpufleet.model.errors import CapacityError, RegistryError
from gpufleet.model.machine import Machine
from gpufleet.registry.machines import MachineCache

NOW = 10**18


def machine(number: int, boot_id: str | None = None) -> Machine:
    return Machine(name=f"n{number}", machine_id=f"{number:032x}", boot_id=boot_id)


def test_machine_limit_keeps_known_machines() -> None:
    machines = MachineCache(max_machines=2)
    ids = [machines.match("c", "s", machine(number), NOW, NOW).id for number in (1, 2)]
    with pytest.raises(CapacityError, match=r"3 .*'c'.* 2") as refused:
        machines.match("c", "s", machine(3), NOW, NOW)
    assert not isinstance(refused.value, RegistryError)  # a registry error is retried and blocks later records
    rebooted = machine(2, boot_id="another")
    assert [machines.match("c", "s", one, NOW + 1, NOW + 1).id for one in (machine(1), rebooted)] == ids
    assert machines.match("other", "s", machine(3), NOW, NOW).id not in ids
