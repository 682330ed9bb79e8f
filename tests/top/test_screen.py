"""Frames of `gpufleet top`: golden files of each page, order, filter, and hostile texts."""

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AnswerDevice, GpuRecord
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.reading import Provenance, Reading
from gpufleet.model.snapshot import ProcessReport, Snapshot
from gpufleet.model.view import ViewKind
from gpufleet.top.history import UtilizationHistory
from gpufleet.top.lines import line_text
from gpufleet.top.observation import Observation, ObservedNode, observe_fleet, observe_snapshot
from gpufleet.top.rows import list_rows
from gpufleet.top.screen import BodyPage, PollStatus, Screen, ViewState, render_screen
from tests.support.golden import check_golden
from tests.support.hostile import CONTROLS, HOSTILE, with_hostile_texts
from tests.support.observed import AT, devices, gpu, node_snapshot, readings
from tests.support.profiles import examples
from tests.support.snapshots import example_guest, held_snapshot

GOLDEN = Path(__file__).parent / "golden"


def history_of(*observations: Observation) -> UtilizationHistory:
    history = UtilizationHistory()
    for observation in observations:
        history.add(list_rows(observation).devices)
    return history


def render(observation: Observation, width: int = 120, status: PollStatus | None = None, **state: Any) -> Screen:
    chosen = ViewState(**state)
    return render_screen(list_rows(observation), history_of(observation), chosen, status or PollStatus(), width)


def lines_of(screen: Screen) -> list[str]:
    return [*map(line_text, screen.header), "", *(line_text(one.line) for one in screen.body)]


def body_of(snapshot: Snapshot, page: BodyPage, **state: Any) -> list[str]:
    return [line_text(one.line) for one in render(observe_snapshot(snapshot), page=page, **state).body]


def first_cells(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.strip()]


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("page", BodyPage)
def test_page_matches_its_golden_file(page: BodyPage, width: int) -> None:
    screen = render(observe_snapshot(node_snapshot()), width, page=page)
    check_golden(GOLDEN / f"{page}-{width}.txt", "\n".join([*lines_of(screen), ""]).encode())
    assert all(cell_len(line) <= width for line in lines_of(screen))


def test_passed_through_gpus_are_counted_apart() -> None:
    bound = gpu(0, readings(gpu_state=Reason.BOUND_TO_VFIO, gpu_utilization_ratio=Reason.BOUND_TO_VFIO))
    own = gpu(1, readings(gpu_state="ok", gpu_utilization_ratio=0.5))
    both, alone = (
        line_text(render(observe_snapshot(node_snapshot(found=found))).header[-1]) for found in ((bound, own), (bound,))
    )
    assert both.split(", ")[:3] == ["GPUs    1", "1 passed through", "utilisation 50 %"]
    assert alone.split(", ")[:3] == ["GPUs    0", "1 passed through", "utilisation -"]


def test_each_total_has_the_number_of_its_gpus() -> None:
    full: dict[str, Any] = {
        "gpu_utilization_ratio": 0.5,
        "gpu_memory_used_bytes": 2**30,
        "gpu_memory_total_bytes": 2**31,
    }
    unsized = {**full, "gpu_power_watts": 100.0, "gpu_memory_total_bytes": Reason.NOT_SUPPORTED}
    found = tuple(gpu(number, readings(**one)) for number, one in enumerate((full, full, unsized)))
    line = line_text(render(observe_snapshot(node_snapshot(found=found))).header[-1])
    assert line == "GPUs    3, utilisation 50 %, memory 2/4 GiB (2/3), power 100 W (1/3)"


def test_readings_of_a_lost_gpu_are_in_no_total() -> None:
    full: dict[str, Any] = {"gpu_utilization_ratio": 0.5, "gpu_power_watts": 100.0}
    found = tuple(gpu(number, readings(**full, gpu_state=state)) for number, state in enumerate(("ok", "lost")))
    line = line_text(render(observe_snapshot(node_snapshot(found=found))).header[-1])
    assert line == "GPUs    2, utilisation 50 % (1/2), memory -, power 100 W (1/2)"


@pytest.mark.parametrize("first", ["here", "left"])
def test_gpu_that_left_a_machine_counts_where_it_is(first: str) -> None:
    here, left = gpu(0, readings(gpu_utilization_ratio=0.5)), gpu(0, readings(gpu_utilization_ratio=Reason.STALE))
    nodes = [ObservedNode(name=name, id=name, devices=(one,)) for name, one in (("here", here), ("left", left))]
    nodes.sort(key=lambda node: node.name != first)
    fleet = Observation(title="http://hub", facts=(), measured_at=AT, nodes=tuple(nodes))
    assert line_text(render(fleet).header[-1]) == "GPUs    1, utilisation 50 %, memory -, power -"


def test_bare_metal_has_no_line_about_vgpus() -> None:
    whole = tuple(device for device in devices() if device.kind is ViewKind.GPU and device.index in (0, 1))
    assert not any("vGPU" in line for line in body_of(node_snapshot(found=whole), BodyPage.DEVICES))


def test_parts_stay_under_their_gpu_in_any_order() -> None:
    for sort in ("index", "power", "memory", "holder"):
        for reverse in (False, True):
            numbers = first_cells(body_of(node_snapshot(), BodyPage.DEVICES, device_sort=sort, reverse=reverse)[1:])
            for index, parts in ((1, ["└1:1/0", "└1:2/0"]), (2, ["vGPU", "└2:3", "└2:20"])):
                place = numbers.index(str(index))
                assert numbers[place + 1 : place + 1 + len(parts)] == parts


def test_devices_are_sorted_with_absent_values_last() -> None:
    def gpus(**state: Any) -> list[str]:
        return [cell for cell in first_cells(body_of(node_snapshot(), BodyPage.DEVICES, **state)[1:]) if cell.isdigit()]

    assert gpus() == ["0", "1", "2", "3"]
    assert gpus(device_sort="utilization") == ["0", "2", "1", "3"]
    assert gpus(device_sort="power", reverse=True)[-2:] == ["1", "0"]


def test_processes_are_sorted() -> None:
    def pids(**state: Any) -> list[str]:
        return [line.split()[1] for line in body_of(node_snapshot(), BodyPage.PROCESSES, **state)[1:]]

    assert pids() == ["4100", "5200", "4101", "5301", "5300"]
    assert pids(process_sort="pid") == ["4100", "4101", "5200", "5300", "5301"]
    assert pids(process_sort="user")[:2] == ["4100", "4101"]


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("alice", []),
        ("train", ["0"]),
        ("H200 lost", ["3"]),
        ("5a1c3f0e", ["2", "vGPU", "└2:3"]),
        ("3G.71GB batch-7", ["1", "└1:1/0"]),
        ("gpu-00000001", ["1", "└1:1/0", "└1:2/0"]),
        ("nothing of this", ["no"]),
    ],
)
def test_filter_keeps_matching_rows_and_their_gpu(terms: str, expected: list[str]) -> None:
    found = first_cells(body_of(node_snapshot(), BodyPage.DEVICES, filter=terms)[1:])
    assert found == (expected or ["no"])


@pytest.mark.parametrize("page", [BodyPage.PROCESSES, BodyPage.SUMS])
@pytest.mark.parametrize(("processes", "shown"), [((), False), (None, True)])
def test_page_without_a_list_of_processes_shows_that(
    page: BodyPage, processes: tuple[ProcessReport, ...] | None, shown: bool
) -> None:
    device = gpu(0, readings(gpu_state="ok"), processes=processes)
    screen = render(observe_snapshot(node_snapshot(found=(device,))), 80, page=page)
    assert any("no list of processes" in line for line in lines_of(screen)) is shown


def test_failed_poll_is_shown_with_the_age_of_the_frame() -> None:
    status = PollStatus(age_seconds=75, error=f"connection refused{HOSTILE}")
    header = "\n".join(map(line_text, render(observe_snapshot(node_snapshot()), status=status).header))
    assert "75 s ago" in header
    assert "connection refused" in header


def test_guests_are_shown_with_their_state() -> None:
    snapshot = msgspec.structs.replace(node_snapshot(), guests=(example_guest(),))
    lines = body_of(snapshot, BodyPage.DEVICES)
    place = next(n for n, line in enumerate(lines) if line.startswith("guest ml/train-0"))
    assert "gpu_lost" in lines[place]
    assert len(lines) == place + 2


def record(machine: str, number: int, state: State = State.LIVE) -> GpuRecord:
    device = gpu(number, readings(gpu_utilization_ratio=number / 10, gpu_state="ok"))
    return GpuRecord(
        cluster="c",
        node=f"node-{machine}",
        index=number,
        device=AnswerDevice(
            id=f"c/{machine}/{device.key}",
            machine=machine,
            kind=device.kind,
            side=device.side,
            uuid=f"{device.uuid}-{machine}",
            source=Provenance.HOST_LOCAL_PROBE,
            readings=device.readings,
        ),
        measured_at=AT,
        received_at=AT,
        age_seconds=200.0,
        liveness=Liveness(state=state, unseen_seconds=200.0),
    )


def test_fleet_has_a_heading_for_each_machine() -> None:
    records = [record("a", 0), record("a", 1), record("b", 0, State.STALE)]
    lines = lines_of(render(observe_fleet("http://hub", records), page=BodyPage.DEVICES))
    headings = [line for line in lines if line.startswith("node-")]
    assert headings[0] == "node-a"
    assert headings[1].startswith("node-b  stale")
    assert any("machines 2, devices 3" in line for line in lines)


def test_machines_of_one_name_stay_apart() -> None:
    records = [msgspec.structs.replace(record(machine, 0), node="same") for machine in ("a", "b")]
    rows = list_rows(observe_fleet("http://hub", records)).devices
    assert len({row.key for row in rows}) == 2


def test_sparkline_has_the_newest_values_and_gaps() -> None:
    values = (0.0, None, 0.5, 1.0)
    series = [
        observe_snapshot(node_snapshot(found=(gpu(0, readings(gpu_utilization_ratio=value, gpu_state="ok")),)))
        for value in values
    ]
    screen = render_screen(
        list_rows(series[-1]), history_of(*series), ViewState(page=BodyPage.DEVICES), PollStatus(), 120
    )
    assert "▁·▅█" in line_text(screen.body[1].line)


def test_repeated_reading_is_not_added_to_the_history() -> None:
    def observed(second: int) -> Observation:
        at = AT + dt.timedelta(seconds=second)
        found = {"gpu_utilization_ratio": Reading(value=second / 100, measured_at=at)}
        return observe_snapshot(node_snapshot(found=(gpu(0, found),)))

    history = history_of(observed(10), observed(10), observed(20), observed(20), observed(30))
    assert history.values(list_rows(observed(30)).devices[0].key) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("page", BodyPage)
def test_hostile_texts_do_not_reach_the_terminal(page: BodyPage) -> None:
    for snapshot in (node_snapshot(), msgspec.structs.replace(held_snapshot(), guests=(example_guest(),))):
        observation = observe_snapshot(with_hostile_texts(snapshot))
        status = PollStatus(error=HOSTILE, mode=HOSTILE, age_seconds=5)
        for width in (80, 200):
            lines = lines_of(render(observation, width, status, page=page))
            assert not CONTROLS & set("".join(lines))
            assert all(line.isprintable() and cell_len(line) <= width for line in lines)


@settings(max_examples=examples(25, 500))
@given(
    name=st.text(max_size=600),
    numbers=st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False)), min_size=4, max_size=4),
    width=st.integers(1, 200),
)
def test_any_text_and_number_fits_the_width(name: str, numbers: list[int | float], width: int) -> None:
    found = readings(
        gpu_utilization_ratio=numbers[0],
        gpu_memory_used_bytes=numbers[1],
        gpu_memory_total_bytes=numbers[2],
        gpu_power_watts=numbers[3],
        gpu_state=name or "ok",
    )
    snapshot = node_snapshot(name, (gpu(0, found, name=name),))
    for page in BodyPage:
        lines = lines_of(render(observe_snapshot(snapshot), width, page=page, filter=name[:3]))
        assert all(line.isprintable() and cell_len(line) <= width for line in lines)


def test_time_of_the_newest_reading_is_in_the_first_line() -> None:
    assert f"{AT.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC" in line_text(
        render(observe_snapshot(node_snapshot())).header[0]
    )
