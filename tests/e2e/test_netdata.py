"""Bare-metal host without an agent that the hub reads through Netdata, until its agent starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.support.netdata import netdata
from tests.support.waiting import wait_until

DOCUMENT = Path(__file__).parents[1] / "data" / "nvidia_smi" / "xml-h100.xml"
NODE = "node-1"  # node name of the agent of these tests

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


def put(site: Site, name: str, kind: str, **target: str) -> None:
    spec = {
        "kind": kind,
        "tenant": "acme",
        "target": {"cluster": "local", **target},
        "valid_from": "2020-01-01T00:00:00Z",
    }
    site.put(f"/v1/allocations/{name}", spec)


def test_netdata_is_used_until_the_agent_reports(site: Site, peer: Callable[[str], Path], tmp_path: Path) -> None:
    with netdata(tmp_path / "netdata", peer("netdata"), DOCUMENT) as url:
        config = tmp_path / "hub.toml"
        config.write_text(f'[[netdata]]\ncluster = "local"\nnode = "{NODE}"\nurl = "{url}"\n')
        site.start_hub("--config", str(config))
        put(site, "whole", "bare_metal", machine=NODE)
        put(site, "slice", "gpu_slice", vm_uuid="5b4e07f6-3a86-4340-039d-25f2a83cdc43")

        def answer(name: str = "whole") -> Any:
            return site.hub(f"/v1/allocations/{name}/metrics")

        def complete() -> bool:
            found = answer()
            readings = [gpu["readings"].get("gpu_sm_clock_hertz", {}) for gpu in found["devices"]]
            return len(readings) == 8 and "host_load_1m" in found["host"] and all("value" in one for one in readings)

        wait_until(complete, seconds=90, what="eight GPUs through Netdata")
        found = answer()
        assert found["source"] == "host_netdata"
        assert found["host"]["host_memory_available_bytes"]["value"] > 1 << 20
        machine = found["machine"]
        for gpu in found["devices"]:
            assert gpu["source"] == "host_netdata"
            assert gpu["uuid"] is None
            assert gpu["readings"]["gpu_memory_free_bytes"]["value"] == 81_080 << 20
            assert gpu["readings"]["gpu_sm_clock_hertz"]["value"] == 345_000_000
            assert "value" not in gpu["readings"]["gpu_power_watts"]
        assert answer("slice")["source"] == "unavailable"
        assert answer("slice")["devices"] == []

        site.start_agent()

        def probed() -> bool:
            return bool(answer()["source"] == "host_local_probe")

        wait_until(probed, seconds=60, what="the agent to answer for the host")
        wait_until(lambda: all(gpu["uuid"] for gpu in answer()["devices"]), seconds=60, what="the UUIDs of the GPUs")
        found = answer()
        assert len(found["devices"]) == 8
        assert {gpu["source"] for gpu in found["devices"]} == {"host_local_probe"}
        assert found["machine"] == machine  # the same machine, not a second one
