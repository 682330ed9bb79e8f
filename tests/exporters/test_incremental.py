"""Incremental documents and pages: always equal to ones created from scratch."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.agent.collect.assemble import Assembler, assemble
from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue, Value
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.runtime import run_to_end
from tests.support.pages import agent_page, shown
from tests.support.passes import World, function, gpu
from tests.support.profiles import examples

STATS = AgentStats(started_at=0, lanes={})
READERS = {"host": (Lane.FAST, Lane.SLOW), "nvml": (Lane.FAST, Lane.SLOW, Lane.STATIC), "nvidia_smi": (Lane.FAST,)}
VIEWS: tuple[View | None, ...] = (
    None,
    gpu(0),
    gpu(1),
    View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="0000-1", instance="7", parent=gpu(0).key),
)
ABSENT = st.sampled_from([Absent(Reason.TIMEOUT, "x"), Absent(Reason.TIMEOUT, "y"), Absent(Reason.NOT_SUPPORTED)])
NUMBERS = st.sampled_from([0, 0.0, -0.0, 1, 1.0, float("nan"), float("inf"), 2**63, 0.25])
VALUES = {
    "gpu_power_watts": NUMBERS | ABSENT,
    "gpu_temperature_celsius": NUMBERS | ABSENT,
    "gpu_energy_joules_total": NUMBERS | ABSENT,
    "gpu_state": st.sampled_from(["ok", "hung"]) | ABSENT,
    "gpu_name": st.sampled_from(["A", 'B"', "C\\"]) | ABSENT,
    "gpu_serial": st.sampled_from(["1", "2"]) | ABSENT,
}
DIMS = {
    ("gpu_fan_speed_ratio", ("0",)): NUMBERS | ABSENT,
    ("gpu_fan_speed_ratio", ("1",)): NUMBERS | ABSENT,
    ("host_network_receive_bytes_total", ("eth 0", "physical")): NUMBERS | ABSENT,
    ("host_service_state", ('a"b',)): st.sampled_from(["active", "failed"]) | ABSENT,
}


@st.composite
def steps(draw: Any) -> Any:
    """Draw one step: time, a failure, or a pass over some views with some readings."""
    kind = draw(st.sampled_from(["pass", "pass", "pass", "pass", "time", "fail", "bus"]))
    reader = draw(st.sampled_from(list(READERS)))
    lane = draw(st.sampled_from(READERS[reader]))
    views = draw(st.lists(st.sampled_from(VIEWS), unique=True))
    rows = [
        (
            view,
            {name: draw(VALUES[name]) for name in draw(st.lists(st.sampled_from(list(VALUES)), unique=True))},
            tuple(
                DimValue(metric, labels, draw(DIMS[metric, labels]))
                for metric, labels in draw(st.lists(st.sampled_from(list(DIMS)), max_size=5))
            ),
            draw(st.booleans()),
        )
        for view in views
    ]
    return kind, reader, lane, rows, draw(st.sampled_from([1.0, 40.0, 200.0]))


def apply(world: World, step: Any) -> None:
    kind, reader, lane, rows, seconds = step
    if kind == "time":
        world.clock.advance(seconds)
    elif kind == "fail":
        world.failed(reader, lane, Absent(Reason.TIMEOUT, f"{seconds}"))
    elif kind == "bus":
        world.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"), function(1, "vfio-pci")))
    else:
        world.clock.advance(1.0)
        samples = [world.sample(reader, lane, view, values, dims) for view, values, dims, _ in rows]
        process = Process(pid=7, kinds=("compute",), start_time=None, values={"memory_bytes": 1})
        busy = [
            msgspec.structs.replace(s, processes=(process,)) if t[3] else s for s, t in zip(samples, rows, strict=True)
        ]
        world.passed(reader, lane, *busy)


@settings(max_examples=examples(15, 300))
@given(st.lists(st.tuples(steps(), st.booleans()), min_size=2, max_size=12))
def test_incremental_documents_and_pages_equal_fresh_ones(drawn: list[tuple[Any, bool]]) -> None:
    world = World(READERS)
    assembler, pages = Assembler(), AgentPages()
    for step, is_shown in drawn:
        apply(world, step)
        if not is_shown:
            continue
        now: Any = {"now": world.clock.monotonic(), "now_ns": world.clock.now_ns(), "capabilities": {"push": "x"}}
        incremental = run_to_end(assembler.steps(world.state, **now))
        fresh = assemble(world.state, **now)
        assert repr(incremental) == repr(fresh)  # NaN differs from itself, and -0.0 equals 0
        for openmetrics in (False, True):
            assert shown(pages, incremental, STATS, openmetrics=openmetrics) == agent_page(
                fresh, STATS, openmetrics=openmetrics
            )


def test_unchanged_parts_are_the_same_objects() -> None:
    world = World(READERS)
    assembler = Assembler()

    def document() -> Snapshot:
        now = world.clock.monotonic()
        return run_to_end(assembler.steps(world.state, now=now, now_ns=world.clock.now_ns(), capabilities={}))

    fan = (DimValue("gpu_fan_speed_ratio", ("0",), 0.5),)
    world.passed(
        "nvml", Lane.SLOW, *[world.sample("nvml", Lane.SLOW, gpu(n), {"gpu_serial": "1"}, fan) for n in (0, 1)]
    )
    first = document()
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": 1.0}))
    second = document()
    assert second.devices[1] is first.devices[1]
    assert second.devices[0].readings["gpu_serial"] is first.devices[0].readings["gpu_serial"]
    assert second.devices[0].dimensions[0] is first.devices[0].dimensions[0]
    assert second.devices[0].readings["gpu_power_watts"].value == 1.0
    assert document().devices[0] is second.devices[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"gpu_power_watts": 1}, {"gpu_power_watts": 1.0}),
        ({"gpu_serial": "1"}, {}),
        ({"gpu_serial": "1"}, {"gpu_serial": Absent(Reason.TIMEOUT)}),
        ({"gpu_power_watts": 1.0, "gpu_state": "ok"}, {"gpu_state": "ok"}),
        ({"gpu_power_watts": Absent(Reason.TIMEOUT)}, {"gpu_power_watts": 1.0}),
        ({"gpu_power_watts": Absent(Reason.TIMEOUT)}, {"gpu_power_watts": Absent(Reason.NOT_SUPPORTED)}),
        ({"gpu_state": "ok"}, {"gpu_state": "hung"}),
        ({"gpu_name": "A"}, {"gpu_name": "B"}),
    ],
)
def test_changes_are_written(before: dict[str, Value | Absent], after: dict[str, Value | Absent]) -> None:
    world, pages, assembler = World(READERS), AgentPages(), Assembler()
    for values in (before, after):
        world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), values))
        snapshot = run_to_end(assembler.steps(world.state, now=1000.0, now_ns=0, capabilities={}))
        assert shown(pages, snapshot, STATS) == agent_page(snapshot, STATS)


def test_reordered_dimensions_are_written() -> None:
    world, pages, assembler = World(READERS), AgentPages(), Assembler()
    for ports in (("a", "b"), ("a", "c"), ("c", "a"), ("a",)):
        dims = tuple(DimValue("host_network_receive_bytes_total", (port, "physical"), 1) for port in ports)
        world.passed("host", Lane.FAST, world.sample("host", Lane.FAST, None, {}, dims))
        snapshot = run_to_end(assembler.steps(world.state, now=1000.0, now_ns=0, capabilities={}))
        assert shown(pages, snapshot, STATS) == agent_page(snapshot, STATS)
