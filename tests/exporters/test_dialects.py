"""Dialects of other projects: golden pages per captured machine, and comparison with their own pages."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.agent.collect.assemble import assemble
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.decoding import decode
from gpufleet.decoding.format import CapturedInput
from gpufleet.delivery.export import AgentStats
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.reading import read_series
from gpufleet.dialects.registry import DIALECTS
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject, ValueType
from gpufleet.model.catalogue.probe import PROBE_NAMES
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import DimValue, Value
from gpufleet.model.snapshot import Guest, Snapshot
from gpufleet.model.text import clean
from tests.support.cut_gpus import cut_world, mig, shared_world, vgpu
from tests.support.golden import check_golden
from tests.support.pages import agent_page, shown
from tests.support.passes import World, gpu

DATA = Path(__file__).parents[1] / "data"
GOLDEN = Path(__file__).parent / "golden" / "machines"
ALL = tuple(dialect.name for dialect in DIALECTS)
AT = 1_790_000_000_000_000_000
MACHINES = {
    "h100": "nvidia_smi/xml-h100.xml",
    "h200-mig": "nvidia_smi/capture-h200-mig__590.48.01.txt",
    "l40s": "nvidia_smi/xml-l40s.xml",
    "vgpu-guest": "nvidia_smi/text-vgpu-guest-a6000-24q-unlicensed-unrestricted.txt",
    "vgpu-host": "nvidia_smi/text-vgpu-host-vgpu-q-edited.txt",
    "l40s-vm-dcgm": "exposition/dcgm-exporter-l40s-vm.txt",
    "h200-nvidia-gpu-exporter": "exposition/nvidia-gpu-exporter-h200-load.txt",
    "kubevirt": "exposition/kubevirt-vmi-gpu.txt",
}


def captured(name: str) -> Snapshot:
    _, decoded = decode(CapturedInput(content=(DATA / MACHINES[name]).read_bytes(), name=name, at=AT))
    return decoded.snapshots[0]


def page(snapshot: Snapshot, *dialects: str) -> bytes:
    return agent_page(snapshot, AgentStats(started_at=AT, lanes={}), dialects or ALL)


def lines(content: bytes, start: str) -> list[str]:
    return [line for line in content.decode().splitlines() if line.startswith(start)]


@pytest.mark.parametrize("name", MACHINES)
def test_page_of_a_captured_machine_matches_its_golden_file(name: str) -> None:
    others = page(captured(name), *(dialect for dialect in ALL if dialect != "gpufleet"))
    check_golden(GOLDEN / f"{name}.txt", others)


@pytest.mark.parametrize("name", MACHINES)
def test_reference_parser_reads_every_dialect_without_duplicates(name: str) -> None:
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for family in text_string_to_metric_families(page(captured(name)).decode()):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in seen
            seen.add(key)
    assert len(seen) > 5


@pytest.mark.system
@pytest.mark.parametrize("name", MACHINES)
def test_promtool_parses_every_page(name: str, peer: Callable[[str], Path]) -> None:
    """Advice about names and units ends with exit code 3, an invalid page with 1."""
    command = [str(peer("promtool")), "check", "metrics"]
    done = subprocess.run(command, input=page(captured(name)), capture_output=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert b"error" not in done.stderr.lower().replace(b"errors_", b"")


def shape(line: str) -> tuple[str, list[str]]:
    return line.partition("{")[0], re.findall(r'(\w+)="', line)


def snapshot_of(world: World) -> Snapshot:
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})


def test_eight_vgpu_families_have_all_smi_labels_in_order() -> None:
    ours = page(snapshot_of(shared_world()), "all-smi")
    theirs = (DATA / "exposition" / "all-smi-vgpu-fixture.txt").read_text().splitlines()
    complete = [shape(line) for line in theirs if "vgpu_vm_id" in line or "vgpu_id" not in line]
    shapes = dict(shape(line) for line in lines(ours, "all_smi_vgpu_"))
    assert len(shapes) == 8
    for name, labels in complete:
        if not name.startswith("#"):
            assert shapes[name] == labels
    values = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines(ours, "all_smi_vgpu_")}
    written = {shape(series)[0]: value for series, value in values.items() if 'vgpu_id="3"' not in series}
    assert written == {
        "all_smi_vgpu_host_mode": "1",
        "all_smi_vgpu_scheduler_state": "2",
        "all_smi_vgpu_scheduler_policy": "1",
        "all_smi_vgpu_utilization": "64",
        "all_smi_vgpu_memory_utilization": "45",
        "all_smi_vgpu_memory_used_bytes": str(3 << 30),
        "all_smi_vgpu_memory_total_bytes": str(8 << 30),
        "all_smi_vgpu_active": "1",
    }
    idle = [value for series, value in values.items() if 'vgpu_id="3"' in series and "_active" in series]
    assert idle == ["0"]


def test_gpu_has_both_generations_of_all_smi_labels() -> None:
    ours = page(snapshot_of(cut_world()), "all-smi")
    (core, *_) = lines(ours, "all_smi_gpu_memory_used_bytes")
    assert shape(core)[1] == ["gpu", "instance", "gpu_uuid", "gpu_index", "uuid", "index"]
    (mig, *_) = lines(ours, "all_smi_mig_instance_memory_used_bytes")
    theirs = next(line for line in lines((DATA / "exposition/all-smi-node.txt").read_bytes(), "all_smi_mig_"))
    assert shape(mig)[1] == shape(theirs)[1]


def test_nvidia_gpu_exporter_page_round_trips() -> None:
    theirs = numbers((DATA / "exposition" / "nvidia-gpu-exporter-h200-load.txt").read_text())
    ours = numbers(page(captured("h200-nvidia-gpu-exporter"), "nvidia-gpu-exporter").decode())
    dialect = next(dialect for dialect in DIALECTS if dialect.name == "nvidia-gpu-exporter")
    expected = {
        key: value
        for key, value in theirs.items()
        if key[0] in dialect.families and dialect.families[key[0]].written and not dialect.families[key[0]].unread
        # The board has no protected memory, encoder and chip-to-chip link.
        if not key[0].startswith(("nvidia_smi_protected_memory_", "nvidia_smi_utilization_encoder_ratio"))
        if key[0] != "nvidia_smi_c2c_mode"
    }
    assert len(expected) > 70
    mine = {key: value for key, value in ours.items() if key[0] in dialect.families}
    assert mine.keys() == expected.keys()
    for key, value in expected.items():
        assert mine[key] == pytest.approx(value, rel=1e-12), key


def numbers(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def xid_world(*ages: float) -> World:
    """Return a world in which GPU 0 had an XID 79 at each of these ages in seconds. XIDs of both GPUs are watched."""
    world = World({"nvml": (Lane.STATIC, Lane.FAST), "events": (Lane.EVENT,)})
    world.passed(
        "nvml", Lane.FAST, *(world.sample("nvml", Lane.FAST, gpu(n), {"gpu_power_watts": 1.0}) for n in (0, 1))
    )
    counts = {0: len(ages), 1: 0}
    world.passed(
        "events",
        Lane.EVENT,
        *(world.sample("events", Lane.EVENT, gpu(n), {"gpu_xid_events_total": count}) for n, count in counts.items()),
    )
    for age in ages:
        at = world.clock.now_ns() - int(age * 1e9)
        world.state.events.append(Event(view=gpu(0), kind="xid", code=79, at=at, attributes={}))
    return world


def test_xids_are_counted_over_the_window_of_dcgm_exporter() -> None:
    ours = page(snapshot_of(xid_world(400, 200, 10)), "dcgm-exporter")
    first, second = lines(ours, "DCGM_EXP_XID_ERRORS_COUNT{")
    assert first.endswith('window_size_in_ms="300000",xid="79"} 2')
    assert 'xid="' not in second
    assert second.endswith('window_size_in_ms="300000"} 0')
    theirs = next(
        line for line in lines((DATA / "exposition/dcgm-exporter-synthetic.txt").read_bytes(), "DCGM_EXP_XID")
    )
    assert [name for name in shape(first)[1] if name != "hostname"] == shape(theirs)[1]
    (none,) = lines(
        ours, "DCGM_FI_DEV_XID_ERRORS{"
    )  # of the GPU without XIDs; the newest XID of the other is unknown here
    assert none.endswith('err_code="0",err_msg="No Error"} 0')


def test_xids_are_not_counted_if_events_were_dropped() -> None:
    assert not lines(page(snapshot_of(xid_world(*[1.0] * 200)), "dcgm-exporter"), "DCGM_EXP_XID_ERRORS_COUNT{")


def test_clock_events_are_counted_per_sample_of_the_window() -> None:
    world = World({"nvml": (Lane.STATIC, Lane.FAST)})
    pages = AgentPages(["dcgm-exporter"])
    stats = AgentStats(started_at=AT, lanes={})
    for mask in (0x4, 0x4 | 0x8, 0x0):
        world.clock.advance(10)
        world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_clock_event_reasons_mask": mask}))
        shown(pages, snapshot_of(world), stats)
        content = shown(pages, snapshot_of(world), stats)  # rendered twice: a sample counts once
    counts = {
        match[1]: match[2]
        for match in re.finditer(r'DCGM_EXP_CLOCK_EVENTS_COUNT{.*clock_event="(\w+)".*} (\d+)', content.decode())
    }
    assert counts == {"power_cap": "2", "hw_slowdown": "1"}
    world.clock.advance(295)
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_clock_event_reasons_mask": 0}))
    later = shown(pages, snapshot_of(world), stats)
    assert not lines(later, 'DCGM_EXP_CLOCK_EVENTS_COUNT{.*power_cap".*} 2')
    assert len(lines(later, "DCGM_EXP_CLOCK_EVENTS_COUNT{")) == 0


def guest_of(snapshot: Snapshot, name: str) -> Guest:
    """Return a virtual machine that sees the devices of a host."""
    machine = Machine(name=name, kind=MachineKind.GUEST)
    return Guest(machine=machine, namespace="ml", name=name, devices=snapshot.devices, host=snapshot.host)


def test_kubevirt_dialect_covers_guests_only() -> None:
    world = World({"nvml": (Lane.STATIC, Lane.FAST)})
    values: dict[str, Value] = {"gpu_utilization_ratio": 0.75, "gpu_power_watts": 250.125, "gpu_memory_used_bytes": 5}
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), values))
    host = snapshot_of(world)
    assert not lines(page(host, "kubevirt"), "kubevirt_")  # host GPUs are not written
    guest = guest_of(host, "train-0")
    ours = page(msgspec.structs.replace(host, guests=(guest,)), "kubevirt")
    theirs = (DATA / "exposition" / "kubevirt-vmi-gpu.txt").read_bytes()
    written = {shape(line)[0]: line.rpartition(" ")[2] for line in lines(ours, "kubevirt_")}
    assert written == {
        "kubevirt_vmi_gpu_utilization_percent": "75",
        "kubevirt_vmi_gpu_power_usage_milliwatts": "250125",
        "kubevirt_vmi_gpu_memory_used_bytes": "5",
    }
    (line,) = lines(ours, "kubevirt_vmi_gpu_utilization")
    assert shape(line) == shape(lines(theirs, "kubevirt_vmi_gpu_utilization")[0])
    assert 'namespace="ml",name="train-0"' in line
    alike = page(msgspec.structs.replace(host, guests=(guest, guest)), "kubevirt")
    assert lines(alike, "kubevirt_") == lines(ours, "kubevirt_")  # a duplicate series would invalidate the page


ROWS = {
    f"{dialect.name} {family.name}": (dialect, family)
    for dialect in DIALECTS
    for family in dialect.families.values()
    if family.written and not family.unread and family.metric not in PROBE_NAMES
}


@given(st.data())
def test_written_names_read_back_at_their_resolution(data: st.DataObject) -> None:
    dialect, family = ROWS[data.draw(st.sampled_from(sorted(ROWS)))]
    metric = CATALOGUE[family.metric]
    labels = family.labels or tuple(data.draw(st.text(min_size=1, max_size=6)) for _ in metric.dims)
    value: Value
    if family.states:
        value = data.draw(st.sampled_from(family.states))
    else:
        top = int(min(metric.high or 1e9, 1e9))
        least = 1 if family.zero or metric.low == 1 else 0
        steps = data.draw(st.integers(least, max(1, top * family.over // family.times)))
        value = steps * family.times / family.over
        value = int(value) if metric.type is ValueType.INT else value
    view = {Subject.MIG: mig(1), Subject.VGPU: vgpu(3, 0)}.get(family.subjects[0], gpu(0))
    of = None if family.subjects[0] is Subject.MACHINE else view
    world = World({"nvml": (Lane.STATIC, Lane.SLOW, Lane.FAST, Lane.EVENT)})
    sample = world.sample(
        "nvml",
        metric.lane,
        of,
        {} if metric.dims else {metric.name: value},
        (DimValue(metric.name, labels, value),) if metric.dims else (),
    )
    parent = [world.sample("nvml", metric.lane, gpu(0), {})] if view.parent else []
    world.passed("nvml", metric.lane, *parent, sample)
    snapshot = snapshot_of(world)
    if dialect is KUBEVIRT:
        snapshot = msgspec.structs.replace(snapshot, guests=(guest_of(snapshot, "train-0"),))
    text = page(snapshot, dialect.name)
    parsed = TextParser().parse(text)
    found = read_series(dialect, parsed.series, parsed.values, parsed.times, AT, reader="x")
    read = {
        (one.view.kind if one.view else None, name, at): reading
        for samples in (*found.machines.values(), *found.guests.values())
        for one in samples
        for name, at, reading in [
            *((name, (), reading) for name, reading in one.values.items()),
            *((dim.metric, dim.labels, dim.value) for dim in one.dims),
        ]
    }
    back = read[of.kind if of else None, metric.name, tuple(map(clean, labels))]
    assert back == pytest.approx(value, abs=1e-6) if isinstance(value, float) else back == value
