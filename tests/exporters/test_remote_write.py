"""Page as remote write: the same series and values, with their own timestamps and stale markers."""

import datetime as dt
import itertools
from collections.abc import Callable

import msgspec
import pytest

from gpufleet.agent.collect.assemble import assemble
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.delivery.export import AgentStats
from gpufleet.delivery.export_queue import ExportQueueStats
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.exporters.remote_write import MAX_ENDED, RemoteWriteSeries
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue
from gpufleet.model.snapshot import Guest, Snapshot
from gpufleet.runtime import run_to_end
from tests.fakes.clock import FakeClock
from tests.support.everything import snapshot_of_everything
from tests.support.passes import World, gpu
from tests.support.snapshots import example_snapshot

STATS = AgentStats(started_at=5, lanes={}, exports={"remote_write": ExportQueueStats(points=7)})
DIALECTS = ("gpufleet", "dcgm-exporter")
MILLISECOND = 10**6

Rows = dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[float | None, int]]]


def source_of(clock: FakeClock, **changes: str) -> RemoteWriteSeries:
    return RemoteWriteSeries(
        DIALECTS, {"job": "gpufleet", "instance": "node-1"}, version="1.0", interval_seconds=10, now_ns=clock.now_ns
    )


def taken(source: RemoteWriteSeries) -> Rows:
    """Return the samples sent, in order: values (None is a stale marker) and times, by series."""
    draft = source.take()
    if draft is None:
        return {}
    request = WriteDecoder().decode_1(draft.encode())
    assert not request.problems
    assert len(request.values) == draft.points
    rows: Rows = {}
    for number, series in enumerate(request.series):
        value = None if number in request.stale else request.values[number]
        key = (series.name, frozenset(series.labels.items()))
        rows.setdefault(key, []).append((value, request.times[number]))
    return rows


def of(rows: Rows, name: str) -> list[tuple[float | None, int]]:
    return [sample for (found, _), every in rows.items() if found == name for sample in every]


def shown(world: World) -> Snapshot:
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})


@pytest.fixture
def world() -> World:
    return World({"nvml": (Lane.FAST,)})


def measure(world: World, watts: float | Absent) -> int:
    world.clock.advance(10)
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": watts}))
    return world.clock.now_ns() // MILLISECOND * MILLISECOND


def everything() -> Snapshot:
    """Return a snapshot with a value of every metric, and a guest with the same values."""
    made = snapshot_of_everything(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 5)
    guest = Guest(
        machine=made.node,
        namespace="ns",
        name="vm",
        vm_uuid="u",
        devices=made.devices,
        host=made.host,
        readers=made.readers,
    )
    return msgspec.structs.replace(made, guests=(guest,))


@pytest.mark.parametrize("shown_of", [example_snapshot, everything])
def test_remote_write_series_are_those_of_the_page(shown_of: Callable[[], Snapshot]) -> None:
    clock, snapshot = FakeClock(), shown_of()
    source = source_of(clock)
    run_to_end(source.offer(snapshot, STATS))
    rows = taken(source)
    added = {"job": "gpufleet", "instance": "node-1"}
    pages = AgentPages(DIALECTS)
    pages.take(snapshot)
    run_to_end(pages.update(snapshot, STATS))
    page = TextParser().parse(pages.page(openmetrics=False))
    expected = {
        (series.name, frozenset({**added, **{k: v for k, v in series.labels.items() if v}}.items())): float(value)
        for series, value in zip(page.series, page.values, strict=True)
    }
    assert {key: value for key, ((value, _),) in rows.items()} == expected
    assert any(name.startswith("DCGM_") for name, _ in rows)
    assert of(rows, "gpufleet_export_points_total") == [(7.0, clock.now_ns() // MILLISECOND * MILLISECOND)]


def test_each_measurement_is_sent_once_at_its_own_time(world: World) -> None:
    source = source_of(world.clock)
    first = measure(world, 300.0)
    run_to_end(source.offer(shown(world), STATS))
    world.clock.advance(5)
    run_to_end(source.offer(shown(world), STATS))
    second = measure(world, 300.0)
    run_to_end(source.offer(shown(world), STATS))
    assert of(taken(source), "gpufleet_gpu_power_watts") == [(300.0, first), (300.0, second)]


def test_untimed_values_are_sent_on_change_and_once_an_interval(world: World) -> None:
    source = source_of(world.clock)
    measure(world, 300.0)
    for _ in range(25):
        run_to_end(source.offer(shown(world), STATS))
        world.clock.advance(1)
    samples = of(taken(source), "gpufleet_gpu_info")
    assert [value for value, _ in samples] == [1.0] * 3
    assert [b - a for (_, a), (_, b) in itertools.pairwise(samples)] == [10 * 10**9] * 2
    stats = AgentStats(started_at=5, lanes={}, exports={"remote_write": ExportQueueStats(points=8)})
    run_to_end(source.offer(shown(world), stats))
    assert [value for value, _ in of(taken(source), "gpufleet_export_points_total")] == [8.0]


def test_removed_series_gets_a_stale_marker_and_can_return(world: World) -> None:
    source = source_of(world.clock)
    for watts in (300.0, 301.0):
        last = measure(world, watts)
        run_to_end(source.offer(shown(world), STATS))
    taken(source)
    gone = measure(world, Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage"))
    run_to_end(source.offer(shown(world), STATS))
    run_to_end(source.offer(shown(world), STATS))
    rows = taken(source)
    assert of(rows, "gpufleet_gpu_power_watts") == [(None, gone)]  # one stale marker, an interval after the last value
    assert gone - last == 10 * 10**9
    assert of(rows, "gpufleet_reading_absent") == [(1.0, gone)]
    back = measure(world, 302.0)
    run_to_end(source.offer(shown(world), STATS))
    rows = taken(source)
    assert of(rows, "gpufleet_gpu_power_watts") == [(302.0, back)]
    assert of(rows, "gpufleet_reading_absent")[-1][0] is None


def test_no_sample_is_sent_before_a_sent_stale_marker(world: World) -> None:
    """A slow pass yields values measured before their series was marked stale."""
    source = source_of(world.clock)
    for watts in (300.0, 301.0):
        measure(world, watts)
        run_to_end(source.offer(shown(world), STATS))
    late = world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": 299.0})
    world.clock.advance(100)
    run_to_end(source.offer(shown(world), STATS))
    (_, marker) = of(taken(source), "gpufleet_gpu_power_watts")[-1]
    world.passed("nvml", Lane.FAST, late)
    run_to_end(source.offer(shown(world), STATS))
    samples = of(taken(source), "gpufleet_gpu_power_watts")
    assert all(at > marker for _, at in samples)


def test_ended_series_expire(world: World) -> None:
    source = source_of(world.clock)
    measure(world, 300.0)
    run_to_end(source.offer(shown(world), STATS))
    known = len(source._series)
    world.clock.advance(7200)
    run_to_end(source.offer(shown(world), STATS))
    run_to_end(source.offer(shown(world), STATS))
    assert len(source._series) < known


def test_number_of_ended_series_is_limited(world: World) -> None:
    """Each change of a holder ends every series of its GPU."""
    source = source_of(world.clock)
    measure(world, 300.0)
    run_to_end(source.offer(shown(world), STATS))
    known = len(source._series)
    for number in range(MAX_ENDED // 4000 + 2):
        dims = tuple(DimValue("gpu_xid_errors_total", (f"{number}-{xid}",), 1) for xid in range(4000))
        world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {}, dims))
        run_to_end(source.offer(shown(world), STATS))
        world.clock.advance(1)
    assert MAX_ENDED < len(source._series) <= MAX_ENDED + 4000 + known


def test_clock_set_back_does_not_suppress_samples(world: World) -> None:
    source = source_of(world.clock)
    measure(world, 300.0)
    run_to_end(source.offer(shown(world), STATS))
    taken(source)
    world.clock.step(-3600)
    at = measure(world, 301.0)
    run_to_end(source.offer(shown(world), STATS))
    assert of(taken(source), "gpufleet_gpu_power_watts") == [(301.0, at)]
