"""Random histories of a vGPU instance that virtual machines have in turn: no tenant sees a reading of another."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import body, gpu_sample, gpu_view
from tests.support.profiles import examples
from tests.web.hub.site import Site, now, running_site

STEPS = 12
TENANTS = {
    "a77c546c-c5a2-4093-bc1b-8051983e7a61": "acme",
    "b77c546c-c5a2-4093-bc1b-8051983e7a61": "bravo",
}
INSTANCE = View(
    kind=ViewKind.VGPU,
    side=Side.VGPU_HOST,
    uuid="c77c546c-c5a2-4093-bc1b-8051983e7a61",
    parent=gpu_view(1).key,
)
METRICS = ("gpu_memory_used_bytes", "vgpu_frame_rate_limit_hertz")


async def shown(site: Site, tenant: str) -> set[int]:
    """Return the values that the answer for a tenant's virtual machine has."""
    answer: Any = (await site.request(f"/v1/allocations/{tenant}/metrics"))[1]
    readings = [device["readings"].get(name, {}) for device in answer["devices"] for name in METRICS]
    return {one["value"] for one in readings if "value" in one}


@pytest.mark.parametrize("seed", range(examples(4, 200)))
async def test_reused_instance_shows_only_the_own_readings(tmp_path: Path, seed: int) -> None:
    """Slow readings follow at random after the report of the next virtual machine. Each value is reported once."""
    chance = random.Random(seed)
    async with running_site(tmp_path) as site:
        for vm, tenant in TENANTS.items():
            spec = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": vm}, "tenant": tenant}
            spec |= {"valid_from": "2020-01-01T00:00:00Z"}
            assert (await site.request(f"/v1/allocations/{tenant}", "PUT", spec))[0] == 201
        own: dict[str, set[int]] = {tenant: set() for tenant in TENANTS.values()}
        start = now() - STEPS * NANOS
        for step in range(STEPS):
            vm, at = chance.choice(sorted(TENANTS)), start + step * NANOS
            fast = gpu_sample(INSTANCE, at, gpu_memory_used_bytes=10 * step, vgpu_vm_id=vm, vgpu_vm_id_kind="uuid")
            samples = [gpu_sample(gpu_view(1), at), fast]
            own[TENANTS[vm]].add(10 * step)
            if chance.random() < 0.4:
                slow = gpu_sample(INSTANCE, at, vgpu_frame_rate_limit_hertz=10 * step + 1)
                samples.append(msgspec.structs.replace(slow, lane=Lane.SLOW))
                own[TENANTS[vm]].add(10 * step + 1)
            await site.post(body(step + 1, at, samples=tuple(samples)))
            assert 10 * step in await shown(site, TENANTS[vm])
            for tenant in own:
                assert await shown(site, tenant) <= own[tenant]
