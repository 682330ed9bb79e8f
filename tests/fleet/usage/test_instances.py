"""Intervals in which a virtual machine had vGPU instances, from the texts of its hosts."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.fleet.usage.instances import instance_intervals
from gpufleet.fleet.usage.residence import UNBOUNDED, Interval
from gpufleet.fleet.usage.units import Place
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, View, ViewKind

HOUR = 3600 * 10**9
NOW = 9 * HOUR
MINE, NEXT = "c77c546c-c5a2-4093-bc1b-8051983e7a61", "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
A, B = "0f3a1f6e-0000-11f0-8000-000000000001", "0f3a1f6e-0000-11f0-8000-000000000002"


def view(uuid: str) -> View:
    return View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=uuid)


def report(uuid: str, at: int, provenance: Provenance = Provenance.HOST_LOCAL_PROBE) -> StoredSample:
    """Return the newest sample of an instance."""
    sample = Sample(
        view=view(uuid),
        reader="nvml",
        lane=Lane.FAST,
        measured_at=at,
        values={"gpu_memory_used_bytes": 1},
        provenance=provenance,
    )
    return StoredSample(sample=sample, received_at=at)


def text(uuid: str, at: int, machine: str, reader: str = "nvml") -> StoredText:
    return StoredText(machine="host", view=view(uuid).key, reader=reader, at=at, text=machine)


def intervals(texts: Sequence[StoredText], *reports: StoredSample) -> dict[Place, tuple[Interval, ...]]:
    return instance_intervals(MINE, texts, {"host": reports}, NOW)


def place(uuid: str) -> Place:
    return "host", view(uuid).key


def test_only_machine_of_an_instance_always_had_it() -> None:
    assert intervals([text(A, HOUR, MINE)], report(A, 2 * HOUR)) == {place(A): ((0, UNBOUNDED),)}


def test_next_machine_ends_the_interval() -> None:
    found = intervals([text(A, HOUR, MINE), text(A, 6 * HOUR, NEXT)], report(A, 9 * HOUR))
    assert found == {place(A): ((0, 6 * HOUR),)}


def test_machine_that_follows_another_begins_with_its_own_text() -> None:
    found = intervals([text(A, HOUR, NEXT), text(A, 6 * HOUR, MINE)], report(A, 9 * HOUR))
    assert found == {place(A): ((6 * HOUR, UNBOUNDED),)}


def test_repeated_text_changes_nothing() -> None:
    found = intervals([text(A, HOUR, MINE), text(A, 3 * HOUR, MINE)], report(A, 9 * HOUR))
    assert found == {place(A): ((0, UNBOUNDED),)}


def test_restart_with_another_instance_replaces_the_ended_one() -> None:
    found = intervals([text(A, HOUR, MINE), text(B, 6 * HOUR, MINE)], report(A, 5 * HOUR), report(B, 9 * HOUR))
    assert found == {place(A): ((0, 6 * HOUR),), place(B): ((6 * HOUR, UNBOUNDED),)}


@pytest.mark.parametrize("after", [MINE, NEXT])
@pytest.mark.parametrize(("last", "end"), [(5, 6), (8, 9)])
def test_replaced_instance_stays_so_if_it_is_used_again(after: str, last: int, end: int) -> None:
    """An instance that was reported beside the other one until 8:00 was not replaced."""
    texts = [text(A, HOUR, MINE), text(B, 6 * HOUR, MINE), text(A, 9 * HOUR, after)]
    stored = {"host": [report(A, 9 * HOUR), report(B, 9 * HOUR)]}
    found = instance_intervals(MINE, texts, stored, NOW, lambda *_: last * HOUR)
    again = ((9 * HOUR, UNBOUNDED),) if after == MINE and end < 9 else ()
    end = UNBOUNDED if after == MINE and end == 9 else end * HOUR
    assert found[place(A)] == ((0, end), *again)


SECOND = 10**9
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")


def ended(*reports: StoredSample) -> list[StoredSample]:
    """Return newest samples of instances whose GPU was read later."""
    at = NOW
    gpu = Sample(view=GPU, reader="nvml", lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": 1.0})
    parts = []
    for one in reports:
        assert one.sample.view is not None
        part = msgspec.structs.replace(one.sample.view, parent=GPU.key)
        parts.append(msgspec.structs.replace(one, sample=msgspec.structs.replace(one.sample, view=part)))
    return [*parts, StoredSample(sample=gpu, received_at=at)]


@pytest.mark.parametrize(("begin", "lives", "is_replaced"), [
    *((0, 300, False), (3, 300, False), (295, 300, False), (2, 0, False)),
    *((310, 900, True), (900, 1800, True)),
])  # fmt: skip
def test_instance_beside_another_one_does_not_replace_it(begin: int, lives: int, is_replaced: bool) -> None:
    """The first instance ends 300 s after its start, or after its first pass. The second one begins before or after."""
    last = HOUR + (300 if lives else 0) * SECOND
    texts = [text(A, HOUR, MINE), text(B, HOUR + begin * SECOND, MINE)]
    found = intervals(texts, *ended(report(A, last), report(B, HOUR + max(begin, lives) * SECOND)))
    assert found[place(A)] == ((0, HOUR + begin * SECOND if is_replaced else UNBOUNDED),)
    assert found[place(B)][0][1] == UNBOUNDED


@pytest.mark.parametrize(("minutes", "is_replaced"), [(5, False), (30, True)])
def test_instance_of_a_host_without_reports_is_replaced_once_another_host_has_the_machine(
    minutes: int, is_replaced: bool
) -> None:
    """The host crashes, and the machine starts on another one within the tolerance between clocks."""
    begin = 2 * HOUR + 180 * SECOND
    texts = [text(A, HOUR, MINE), StoredText(machine="other", view=place(B)[1], reader="nvml", at=begin, text=MINE)]
    stored = {"host": [report(A, 2 * HOUR)], "other": [report(B, begin + minutes * 60 * SECOND)]}
    found = instance_intervals(MINE, texts, stored, begin + minutes * 60 * SECOND)
    assert found[place(A)] == ((0, begin if is_replaced else UNBOUNDED),)


def test_time_before_all_reports_is_of_one_host_only() -> None:
    """The first host has had no report for a minute: it can still have the machine."""
    begin = HOUR + 300 * SECOND
    texts = [text(A, HOUR, MINE), StoredText(machine="other", view=place(B)[1], reader="nvml", at=begin, text=MINE)]
    stored = {"host": [report(A, begin - 60 * SECOND)], "other": [report(B, begin)]}
    found = instance_intervals(MINE, texts, stored, begin)
    assert found == {place(A): ((0, UNBOUNDED),), ("other", place(B)[1]): ((begin, UNBOUNDED),)}


@pytest.mark.parametrize(("minutes", "is_replaced"), [(9, False), (30, True)])
def test_instance_of_a_crashed_host_ends_at_a_short_stay_on_another_host(minutes: int, is_replaced: bool) -> None:
    """The machine starts on the other host a minute after the crash, and is stopped there within the tolerance."""
    begin = 2 * HOUR + 60 * SECOND
    texts = [text(A, HOUR, MINE), StoredText(machine="other", view=place(B)[1], reader="nvml", at=begin, text=MINE)]
    stored = {"host": [report(A, 2 * HOUR)], "other": ended(report(B, begin + 300 * SECOND))}
    found = instance_intervals(MINE, texts, stored, 2 * HOUR + minutes * 60 * SECOND)
    assert found[place(A)] == ((0, begin if is_replaced else UNBOUNDED),)


def test_short_stay_by_a_clock_ahead_does_not_end_an_instance() -> None:
    """The machine moved here from a host whose clock is ahead. This host has had no connection for an hour."""
    begin = HOUR + 60 * SECOND
    texts = [text(A, HOUR, MINE), StoredText(machine="other", view=place(B)[1], reader="nvml", at=begin, text=MINE)]
    stored = {"host": [report(A, 2 * HOUR)], "other": ended(report(B, begin + 60 * SECOND))}
    assert instance_intervals(MINE, texts, stored, NOW)[place(A)] == ((0, UNBOUNDED),)


def test_machine_that_moved_soon_after_the_first_report_has_its_earlier_time_once() -> None:
    begin = HOUR + 300 * SECOND
    texts = [text(A, HOUR, MINE), StoredText(machine="other", view=place(B)[1], reader="nvml", at=begin, text=MINE)]
    stored = {"host": ended(report(A, begin - 10 * SECOND)), "other": [report(B, 9 * HOUR)]}
    found = instance_intervals(MINE, texts, stored, NOW)
    assert found == {place(A): ((0, begin),), ("other", place(B)[1]): ((begin, UNBOUNDED),)}


def test_second_instance_of_a_restarted_machine_has_no_time_before_it() -> None:
    begin = HOUR + 300 * SECOND
    texts = [text(A, HOUR, MINE), text(B, begin, MINE)]
    found = intervals(texts, *ended(report(A, begin - 30 * SECOND), report(B, 9 * HOUR)))
    assert found == {place(A): ((0, begin),), place(B): ((begin, UNBOUNDED),)}


def test_instance_on_another_host_replaces_it_also_by_a_clock_behind() -> None:
    texts = [text(A, HOUR, MINE), StoredText(machine="other", view=place(B)[1], reader="nvml", at=2 * HOUR, text=MINE)]
    stored = {"host": ended(report(A, 2 * HOUR + 300 * SECOND)), "other": [report(B, 9 * HOUR)]}
    assert instance_intervals(MINE, texts, stored, NOW)[place(A)] == ((0, 2 * HOUR),)


def test_texts_of_imports_do_not_count() -> None:
    imported = report(A, 9 * HOUR, Provenance.IMPORTED)
    assert intervals([text(A, HOUR, MINE)], imported) == {}
    assert intervals([text(A, HOUR, MINE, reader="exporter")], report(A, 9 * HOUR)) == {}
