"""`gpufleet why VM`, and `doctor` with a running agent: virtual machines and their access paths."""

import datetime as dt
import json
from pathlib import Path

import msgspec
import pytest

from gpufleet.cli.devices import find_guest, find_guest_device
from gpufleet.cli.explain import explain_guest
from gpufleet.cli.options import CommandError
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.doctor import CheckVerdict, NodeFacts, examine
from gpufleet.doctor.checks.guests import GUEST_FIXES, check_guest
from gpufleet.model.machine import OK, REMOVED, STATES
from gpufleet.model.snapshot import Snapshot
from tests.support.command import gpufleet
from tests.support.snapshots import EXAMPLE_GUEST, example_guest, example_snapshot

NOW = dt.datetime(2026, 1, 1, 0, 1, tzinfo=dt.UTC)

FACTS = ("state gpu_lost: nvidia-smi, ssh to 10.0.3.7:22: GPU is lost",)


def snapshot() -> Snapshot:
    other = msgspec.structs.replace(example_guest(), namespace="ops", vm_uuid="6f1ed002-0000-4000-8000-000000000000")
    machine = msgspec.structs.replace(other.machine, name="ops/train-0")
    other = msgspec.structs.replace(other, machine=machine, allocation="", devices=())
    return msgspec.structs.replace(example_snapshot(), guests=(example_guest(), other))


@pytest.mark.parametrize("query", ["ml/train-0", EXAMPLE_GUEST, "6F1ED002-AB", "slice-1"])
def test_guest_is_found_by_name_uuid_or_allocation(query: str) -> None:
    found = find_guest(snapshot(), query)
    assert found is not None
    assert found.machine.name == "ml/train-0"


def test_ambiguous_or_unknown_guest_is_reported() -> None:
    for query in ("train-0", "6f1ed002"):
        with pytest.raises(CommandError, match="ml/train-0"):
            find_guest(snapshot(), query)
    assert [find_guest(snapshot(), query) for query in ("", "6f1", "train")] == [None, None, None]
    inside = find_guest_device(snapshot(), "0000abcd")
    assert inside is not None
    assert inside[0].machine.name == "ml/train-0"


def test_guest_explanation_has_facts_and_parts() -> None:
    found = explain_guest(example_guest(), NOW)
    assert found.subject == f"virtual machine ml/train-0 {EXAMPLE_GUEST}"
    assert found.facts[0] == FACTS[0]
    assert any("vsock://42:5555: Connection reset by peer" in fact for fact in found.facts)
    assert any("gpu_lost: GPU is lost" in fact for fact in found.facts[1:])
    assert [part.title for part in found.parts] == ["the machine", "gpu GPU-0000abcd-0000"]


def test_why_queries_the_agent_for_guests(agent_pages: dict[str, tuple[int, bytes]]) -> None:
    agent_pages["/v1/snapshot"] = (200, encode_snapshot(snapshot()))
    url = agent_pages["url"][1].decode()
    done = gpufleet("why", "ml/train-0", "--agent", url)
    assert done.returncode == 0, done.stderr
    assert "found by folder: train-0.toml" in done.stderr
    assert "guest_unreachable: vsock://42:5555: Connection reset by peer" in done.stderr
    device = gpufleet("why", "GPU-0000abcd", "--agent", url, "--json")
    assert json.loads(device.stdout)["facts"][0] == FACTS[0]
    missing = gpufleet("why", "unknown", "--agent", url, "--hub", "http://127.0.0.1:1")
    assert missing.returncode != 0
    unknown = gpufleet("why", "unknown", "--agent", url)
    assert "virtual machines of the agent: ml/train-0, ops/train-0" in unknown.stderr


def test_doctor_checks_each_guest(agent_pages: dict[str, tuple[int, bytes]], tmp_path: Path) -> None:
    agent_pages["/v1/snapshot"] = (200, encode_snapshot(snapshot()))
    listen = agent_pages["url"][1].decode().removeprefix("http://")
    config = tmp_path / "agent.toml"
    config.write_text(f'listen = "{listen}"\nguest_folder = "{tmp_path}"\n')
    done = gpufleet("doctor", "--json", "--config", str(config))
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["guests"]["found"] == "2 virtual machines, 0 read"
    assert checks["guest ml/train-0"]["verdict"] == "failed"
    assert "found by folder: train-0.toml" in checks["guest ml/train-0"]["found"]
    assert checks["guest ml/train-0"]["fix"] == GUEST_FIXES["gpu_lost"]
    config.write_text(f'listen = "127.0.0.1:1"\nguest_folder = "{tmp_path}"\n')
    checks_without_agent = json.loads(gpufleet("doctor", "--json", "--config", str(config)).stdout)
    assert next(one for one in checks_without_agent if one["name"] == "guests")["verdict"] == "unknown"


def test_every_guest_state_has_a_fix() -> None:
    assert set(GUEST_FIXES) == set(STATES) - {OK, REMOVED}
    clock = int(NOW.timestamp()) * 10**9
    for state in STATES:
        guest = msgspec.structs.replace(example_guest(), state=state)
        facts = NodeFacts(guests_described=True, guests=(guest,), clock_ns=clock)
        (check,) = (one for one in examine(facts) if one.name == "guest ml/train-0")
        assert (check.verdict is CheckVerdict.OK) == (state == OK)
        assert bool(check.fix) == (state != OK)


def test_invalid_guest_file_fails_the_doctor() -> None:
    facts = NodeFacts(guests_described=True, guests=(), guests_capability="failing: a.toml: is not TOML")
    (check,) = (one for one in examine(facts) if one.name == "guests")
    assert (check.verdict, check.found) == (CheckVerdict.FAILED, "a.toml: is not TOML")


def test_excluded_guest_is_explained_and_is_no_failure() -> None:
    detail = "its user does not permit it: the annotation kubevirt.io/gpu-metrics-collector is not set"
    one = msgspec.structs.replace(example_guest(), state="not_enabled", detail=detail, excluded=True, devices=())
    assert detail in explain_guest(one, NOW).facts[0]
    assert check_guest(one, NOW).verdict is CheckVerdict.WARNING
    assert check_guest(msgspec.structs.replace(one, excluded=False), NOW).verdict is CheckVerdict.FAILED
