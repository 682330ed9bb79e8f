"""Allocation page in Chromium, of a slice in a real virtual machine that an agent reads for a hub."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Site
from tests.support.chromium import running_chromium
from tests.support.waiting import PATIENCE, wait_until
from tests.vm.machine import ENGINE_PORT, VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

UUID = "6f1ed002-ab5b-4f4f-8f2c-00000000002a"
SECONDS = 120.0
"""Timeout for an emulated processor, beside other tests."""


@pytest.fixture
def site(vm: VirtualMachine, tmp_path: Path) -> Iterator[Site]:
    """Yield a hub and an agent that reads the virtual machine through its DCGM engine."""
    made = Site(tmp_path)
    (tmp_path / "agent.toml").write_text(
        "[readers.nvml]\nenabled = false\n[lanes]\nfast = 3.0\n"
        f'[[guests]]\nname = "{vm.name}"\nvm_uuid = "{UUID}"\n'
        f'[[guests.channels]]\ntype = "dcgm"\naddress = "hybrid-vsock://{vm.vsock}:{ENGINE_PORT}"\n'
    )
    made.start_hub()
    made.start_agent()
    yield made
    made.stop()


def test_page_shows_a_slice_measured_inside_its_machine(
    site: Site, vm: VirtualMachine, peer: Callable[[str], Path]
) -> None:
    spec = {"kind": "gpu_slice", "tenant": "acme", "target": {"cluster": "local", "vm_uuid": UUID}}
    site.put("/v1/allocations/slice", spec)

    def reporting() -> bool:
        answer = site.hub("/v1/allocations/slice/metrics")
        return bool(answer["aggregate"]["reporting"] == vm.gpus)

    wait_until(reporting, seconds=SECONDS, what="the GPUs of the virtual machine")
    with running_chromium(peer("chromium")) as browser:
        page = browser.new_page()
        page.set_default_timeout(20_000 * PATIENCE)
        page.goto(f"{site.hub_url}/ui/#/allocations/slice")
        expect(page.locator(".source strong").first).to_have_text("slice_guest")
        expect(page.locator("dl.facts").first).to_contain_text(f"{vm.gpus} of {vm.gpus} report")
        rows = page.get_by_role("region", name="GPUs", exact=True).locator("tbody tr")
        expect(rows).to_have_count(vm.gpus)
        for number in range(vm.gpus):
            expect(rows.nth(number)).to_contain_text(f"{312 + number}.3 W")  # 312.25 W and 313.25 W
