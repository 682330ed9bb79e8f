"""`gpufleet why`: device lookup, and explanations of every reading."""

import json

import msgspec
import pytest

from gpufleet.cli.devices import find_device
from gpufleet.cli.explain import (
    ExplainedReading,
    ExplainedSubject,
    Explanation,
    explain_device,
    explanation_tables,
    select_readings,
)
from gpufleet.cli.options import CommandError
from gpufleet.cli.table import Layout, render
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState
from gpufleet.model.time import to_datetime
from tests.fakes.nvml.driver import FakeNvml
from tests.support.command import gpufleet
from tests.support.snapshots import example_snapshot, held_snapshot


@pytest.mark.parametrize(
    ("query", "key", "how"),
    [
        ("GPU-00000000-0000", "gpu/GPU-00000000-0000", "UUID"),
        ("gpu-00000001", "gpu/GPU-00000001-0000", "UUID"),
        ("00000001", "gpu/GPU-00000001-0000", "UUID"),
        ("0000:19:00.0", "gpu/pci/0000:19:00.0", "PCI address"),
        ("00000000:19:00.0", "gpu/pci/0000:19:00.0", "PCI address"),
        ("19:00.0", "gpu/pci/0000:19:00.0", "PCI address"),
        ("1", "gpu/GPU-00000001-0000", "index"),
    ],
)
def test_device_is_found_by_uuid_pci_address_or_index(query: str, key: str, how: str) -> None:
    found = find_device(example_snapshot(), query)
    assert found is not None
    assert (found[0].key, found[1].split(",")[0]) == (key, how)


@pytest.mark.parametrize("query", ["7", "none", "None", "", "0000:ff:00.0", "0000:zz:00.0", "GPU-9"])
def test_query_without_match_finds_no_device(query: str) -> None:
    assert find_device(example_snapshot(), query) is None


@pytest.mark.parametrize("query", ["GPU-0000000", "0000:10:00.0"])
def test_ambiguous_query_lists_the_devices(query: str) -> None:
    with pytest.raises(CommandError, match="2 devices"):
        find_device(example_snapshot(), query)


def test_every_reading_is_explained(agent_url: str) -> None:
    done = gpufleet("why", "GPU-00000001", "--agent", agent_url, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (part,) = document["parts"]
    lines = {line["metric"]: line for line in part["lines"]}
    power = lines["gpu_power_watts"]
    assert (power["absent"], power["detail"]) == ("timeout", "nvmlDeviceGetTemperatureV")
    assert (power["reader"], power["side"], power["unit"]) == ("nvml", "host", "watts")
    assert power["age_seconds"] > 0
    assert lines["gpu_fan_speed_ratio"]["absent"] == "not_collected" if "gpu_fan_speed_ratio" in lines else True
    gpu = [metric for metric in CATALOGUE.values() if Subject.GPU in metric.subjects and metric.role is None]
    expected = {metric.name for metric in gpu if not metric.dims}
    assert expected <= set(lines)
    assert lines["gpu_vbios_version"]["absent"] == "not_collected"
    assert "reader nvml partial: gpu/GPU-00000001-0000: hung in nvmlDeviceGetTemperatureV" in document["facts"]


def test_passed_through_device_is_explained(agent_url: str) -> None:
    done = gpufleet("why", "0000:19:00.0", "--agent", agent_url)
    assert done.returncode == 0
    assert "bound driver: vfio-pci" in done.stderr
    assert "bound_to_vfio: passed through to a guest" in done.stdout


def test_inherent_absence_is_explained_by_the_catalogue(fake: FakeNvml) -> None:
    done = gpufleet("why", "0", "--json", env=fake.environment)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    fan = next(line for line in document["parts"][0]["lines"] if line["metric"].startswith("gpu_fan_speed_ratio"))
    assert (fan["absent"], fan["catalogue"]) == ("not_supported", "passively cooled boards have no fan")
    assert "matched by index, which can change when the machine restarts" in document["facts"]


def test_gpu_without_vgpus_has_no_vgpu_lines(fake: FakeNvml) -> None:
    done = gpufleet("why", "0", "--json", env=fake.environment)
    names = [line["metric"] for part in json.loads(done.stdout)["parts"] for line in part["lines"]]
    assert "gpu_mig_mode_pending" in names
    assert not [name for name in names if "vgpu" in name or name.startswith("gpu_mig_devices")]


def test_host_readings_are_explained(agent_url: str) -> None:
    done = gpufleet("why", "host", "--agent", agent_url)
    assert "host_system_uuid" in done.stdout
    assert "not_permitted: needs root" in done.stdout
    assert "host_network_receive_bytes_total{interface=eth0,class=physical}" in done.stdout


def test_unknown_device_is_reported_with_the_known_ones(agent_url: str) -> None:
    done = gpufleet("why", "7", "--agent", agent_url)
    assert done.returncode == 1
    assert "GPU-00000000-0000" in done.stderr
    assert "--hub" in done.stderr


ANSWER: dict[str, object] = {
    "allocation": {
        "id": "a/1",
        "generation": 2,
        "spec": {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": "u"}},
        "created_at": "2026-01-01T00:00:00Z",
    },
    "source": "unavailable",
    "reason": "guest_not_collected",
    "detail": "nothing reads this guest",
    "measured_at": None,
    "received_at": None,
    "age_seconds": None,
    "last_error": None,
    "aggregate": {"coverage": "0 of 0 devices", "reporting": 0, "devices": 0, "metrics": {}},
    "machine": None,
    "devices": [],
    "host": {},
    "host_dimensions": [],
}


def test_allocation_is_explained_by_its_hub(agent_pages: dict[str, tuple[int, bytes]], agent_url: str) -> None:
    agent_pages["/v1/allocations/a%2F1/metrics"] = (200, json.dumps(ANSWER).encode())
    done = gpufleet("why", "a/1", "--hub", agent_url)
    assert done.returncode == 0, done.stderr
    assert "allocation a/1" in done.stderr
    assert "unavailable: guest_not_collected: nothing reads this guest" in done.stderr
    assert "0 of 0 devices" in done.stderr


def test_unknown_allocation_shows_the_error_of_the_hub(agent_url: str) -> None:
    done = gpufleet("why", "a/2", "--hub", agent_url)
    assert done.returncode == 1
    assert "returned 404: there is nothing at this path" in done.stderr


def test_markup_in_a_label_is_escaped() -> None:
    line = ExplainedReading(metric="host_filesystem_files{mountpoint=/mnt/[/x]}", value=1, text="1", reader="host")
    explanation = Explanation(subject="vm", facts=(), parts=(ExplainedSubject(title="host", lines=(line,)),))
    assert "/mnt/[/x]" in render(explanation_tables(explanation), Layout(), width=140).text


def lines(*names: str) -> tuple[ExplainedReading, ...]:
    return tuple(ExplainedReading(metric=name, value=1, text="1", reader="nvml") for name in names)


def test_readings_are_grouped_by_theme_on_a_terminal() -> None:
    part = ExplainedSubject(
        title="gpu", lines=lines("gpu_power_watts", "gpu_utilization_ratio", "gpu_power_limit_watts")
    )
    explanation = Explanation(subject="gpu", facts=(), parts=(part,))
    page = render(explanation_tables(explanation), Layout(), width=80).text.splitlines()
    assert [line.split()[0] for line in page if line] == [
        "reading", "activity", "gpu_utilization_ratio", "power", "gpu_power_watts", "gpu_power_limit_watts",
    ]  # fmt: skip


def test_long_labels_wrap_and_names_do_not() -> None:
    labels = "mountpoint=/var/lib/kubelet,device=/dev/mapper/ubuntu--vg-ubuntu--lv,fstype=ext4"
    name = "host_filesystem_available_bytes"
    named = lines(f"{name}{{{labels}}}", "gpu_sram_uncorrected_lifetime_errors_total")
    reason = ExplainedReading(metric="host_cpus", absent=Reason.DRIVER_ERROR, detail="no such file " * 20)
    explanation = Explanation(subject="vm", facts=(), parts=(ExplainedSubject(title="host", lines=(*named, reason)),))
    page = render(explanation_tables(explanation), Layout(), width=80).text
    assert max(map(len, page.splitlines())) <= 80
    parts = page.split()
    assert {f"{name}{{", "gpu_sram_uncorrected_lifetime_errors_total", "mountpoint=/var/lib/kubelet,"} <= set(parts)
    piped = render(explanation_tables(explanation), Layout(), width=None).text
    assert f"{name}{{{labels}}}" in piped


def test_readings_of_several_devices_name_the_device() -> None:
    parts = tuple(ExplainedSubject(title=name, lines=lines("gpu_power_watts")) for name in ("gpu-a", "gpu-b"))
    page = render(explanation_tables(Explanation(subject="x", facts=(), parts=parts)), Layout(), width=80).text
    assert [line.partition(":")[0] for line in page.splitlines() if ":" in line] == ["gpu-a", "gpu-b"]


def test_readings_are_selected_by_metric_and_absence(agent_url: str) -> None:
    def metrics(*options: str) -> list[tuple[str, bool]]:
        done = gpufleet("why", "GPU-00000001", "--agent", agent_url, "--json", *options)
        assert done.returncode == 0, done.stderr
        return [(line["metric"], "absent" in line) for line in json.loads(done.stdout)["parts"][0]["lines"]]

    every = metrics()
    assert metrics("--metric", "power_watts") == [one for one in every if "power_watts" in one[0]]
    assert metrics("--absent") == [one for one in every if one[1]]
    assert metrics("--absent", "--metric", "ecc", "--metric", "fan") == [
        one for one in every if one[1] and ("ecc" in one[0] or "fan" in one[0])
    ]


def test_selection_without_a_match_is_empty() -> None:
    explanation = Explanation(subject="x", facts=(), parts=(ExplainedSubject(title="x", lines=lines("gpu_state")),))
    (part,) = select_readings(explanation, ["power"], absent=False).parts
    assert part.lines == ()


def holder_facts(explanation: Explanation) -> list[str]:
    return [fact for fact in explanation.facts if fact.startswith("holder")]


def test_holder_of_a_device_is_named_with_its_evidence(
    agent_pages: dict[str, tuple[int, bytes]], agent_url: str
) -> None:
    agent_pages["/v1/snapshot"] = (200, encode_snapshot(held_snapshot()))
    done = gpufleet("why", "0", "--agent", agent_url, "--json")
    (fact,) = [one for one in json.loads(done.stdout)["facts"] if one.startswith("holder")]
    assert 'pod ml/tr"ain' in fact
    assert "verdict agreed, evidence: kubelet, process" in fact


def test_state_of_unknown_holders_has_its_reason() -> None:
    snapshot = held_snapshot()
    unknown = DeviceHolders(state=HolderState.UNKNOWN, detail="kubelet: no answer")
    device = msgspec.structs.replace(snapshot.devices[0], holders=unknown)
    facts = explain_device(snapshot, device, "index", snapshot.measured_at).facts
    assert [one for one in facts if "unknown" in one and "kubelet: no answer" in one]


def test_job_that_holds_a_device_is_named_once() -> None:
    snapshot = held_snapshot()
    held = snapshot.devices[0].holders
    assert held is not None
    job = Holder(kind=HolderKind.JOB, id="12", name="train")
    held = msgspec.structs.replace(held, holdings=(msgspec.structs.replace(held.holdings[0], holder=job),))
    device = msgspec.structs.replace(snapshot.devices[0], holders=held)
    (fact,) = holder_facts(explain_device(snapshot, device, "index", snapshot.measured_at))
    assert fact.startswith("holder: job 12 train")


def test_start_of_a_holding_is_left_out_without_an_agent() -> None:
    snapshot = held_snapshot()
    device, now = snapshot.devices[0], snapshot.measured_at
    assert device.holders is not None
    since = to_datetime(device.holders.holdings[0].since)
    (known,) = holder_facts(explain_device(snapshot, device, "index", now))
    (unknown,) = holder_facts(explain_device(snapshot, device, "index", now, since))
    assert len(unknown) < len(known)
