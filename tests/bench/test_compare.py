"""Comparison of captures: verdicts, refusals, and other differences."""

from typing import Any

import msgspec
import pytest

from gpufleet.bench.compare import MAX_SHOWN, Comparison, ComparisonError, LoadedCapture, Verdict, compare
from gpufleet.model.absence import Reason
from gpufleet.probe.records import Better, Fact, MeasuredUnit
from tests.support.benchmarks import loaded, measured, noisy

HIGH, LOW = (100.0, 101.0, 99.0, 100.5, 99.5), (50.0, 51.0, 49.0, 50.5, 49.5)


def verdict(first: LoadedCapture, other: LoadedCapture) -> tuple[Verdict, str]:
    (one,) = compare([first, other]).measurements
    return one.verdict, one.detail


@pytest.mark.parametrize("repeats", [5, 10])
def test_captures_of_one_distribution_do_not_differ(repeats: int) -> None:
    different = 0
    for number in range(100):
        first, other = (loaded(*noisy(f"{side} {number}", repeats=repeats)) for side in "ab")
        verdicts = {one.verdict for one in compare([first, other]).measurements}
        different += verdicts != {Verdict.NO_DIFFERENCE}
    assert different <= 5


def test_slower_machine_is_worse_in_each_measurement() -> None:
    first, other = loaded(*noisy("a", repeats=10)), loaded(*noisy("b", repeats=10, factor=0.2))
    assert {one.verdict for one in compare([first, other]).measurements} == {Verdict.WORSE}


@pytest.mark.parametrize(("better", "expected"), [(Better.HIGHER, Verdict.WORSE), (Better.LOWER, Verdict.BETTER)])
def test_direction_decides_what_is_better(better: Better, expected: Verdict) -> None:
    comparison = compare([loaded(measured(values=HIGH, better=better)), loaded(measured(values=LOW, better=better))])
    (one,) = comparison.measurements
    assert one.verdict is expected
    assert one.difference_ratio == pytest.approx(-0.5)
    assert one.high_ratio is not None
    assert one.high_ratio < 0


def test_too_few_repeats_have_no_verdict() -> None:
    first = loaded(measured(values=HIGH), measured("other", values=HIGH))
    other = loaded(measured(values=LOW[:4]), measured("other", values=LOW))
    one = compare([first, other]).measurements[0]
    assert (one.verdict, one.interval) == (Verdict.TOO_FEW_REPEATS, None)
    assert one.other is not None


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": ("--readonly", "--filename=TARGET", "--direct=0")},
        {"tool_version": "3.36"},
        {"tool": "other"},
        {"unit": MeasuredUnit.SECONDS},
        {"better": Better.LOWER},
    ],
)
def test_other_ways_of_measuring_are_not_comparable(change: dict[str, Any]) -> None:
    same = measured("other", values=HIGH)
    first, other = loaded(measured(values=HIGH), same), loaded(measured(values=LOW, **change), same)
    assert compare([first, other]).measurements[0].verdict is Verdict.NOT_COMPARABLE
    with pytest.raises(ComparisonError):
        compare([loaded(measured(values=HIGH)), loaded(measured(values=LOW, **change))])


def test_target_may_differ_and_is_named() -> None:
    comparison = compare([loaded(measured(values=HIGH)), loaded(measured(values=LOW, target="/dev/vda"))])
    assert comparison.measurements[0].verdict is Verdict.WORSE
    assert [(one.name, one.values) for one in comparison.differences] == [
        ("targets", {"A": "/data/file", "B": "/dev/vda"})
    ]


def test_measurement_without_values_has_its_reason() -> None:
    absent = measured(absent=Reason.NOT_ENABLED, detail="fio: not found")
    same = measured("other", values=HIGH)
    one = compare([loaded(measured(values=HIGH), same), loaded(absent, same)]).measurements[0]
    assert (one.verdict, one.detail) == (Verdict.ABSENT, "not_enabled: fio: not found")


def test_measurements_without_any_value_are_in_the_notes() -> None:
    absent = measured("gone", absent=Reason.NOT_ENABLED)
    comparison = compare([loaded(measured(values=HIGH), absent)] * 2)
    assert [one.name for one in comparison.measurements] == ["fio_read_1m_bandwidth"]
    assert any("gone" in note for note in comparison.notes)


def facts_of(comparison: Comparison) -> dict[str, dict[str, str]]:
    return {one.name: one.values for one in comparison.differences}


def test_differing_facts_and_labels_are_listed() -> None:
    def machine(driver: str, widths: tuple[int, ...], labels: dict[str, str], uptime: float) -> LoadedCapture:
        links = tuple(
            Fact(name="pci_link_width", subject=f"0000:{bus:02x}:00.0", value=width) for bus, width in enumerate(widths)
        )
        return loaded(
            measured(values=HIGH),
            labels=labels,
            facts=(
                Fact(name="nvidia_driver_version", value=driver),
                Fact(name="host_cpus", value=64),
                Fact(name="host_uptime_seconds", value=uptime),
                *links,
            ),
        )

    comparison = compare([machine("580.1", (16, 16), {"hugepages": "on"}, 1.0), machine("590.2", (16, 8), {}, 2.0)])
    assert facts_of(comparison) == {
        "nvidia_driver_version": {"A": "580.1", "B": "590.2"},
        "pci_link_width": {"A": "2 x 16", "B": "1 x 16, 1 x 8"},
        "label hugepages": {"A": "on", "B": "unset"},
    }


def test_forged_facts_have_a_bounded_text() -> None:
    forged = tuple(Fact(name="pci_link_width", subject=f"{n:x}", value=f"{n}" + "x" * 1000) for n in range(4096))
    other = loaded(*(measured(f"m{n}", values=HIGH, target=f"/{n}" + "x" * 1000) for n in range(200)), facts=forged)
    found = facts_of(compare([loaded(measured("m0", values=HIGH)), other]))
    assert {name: max(map(len, values.values())) for name, values in found.items()}["pci_link_width"] == MAX_SHOWN
    assert max(len(text) for values in found.values() for text in values.values()) == MAX_SHOWN


def test_emulated_machine_is_named() -> None:
    other = loaded(measured(values=LOW), facts=(Fact(name="host_virtualization", value="qemu"),))
    comparison = compare([loaded(measured(values=HIGH)), other])
    assert [one.is_emulated for one in comparison.captures] == [False, True]
    assert any("emulated" in note for note in comparison.notes)


def test_zero_baseline_has_no_ratio() -> None:
    first, other = loaded(measured(values=(0.0,) * 5)), loaded(measured(values=HIGH))
    (one,) = compare([first, other]).measurements
    assert one.difference_ratio is None
    assert one.interval is not None
    assert one.interval.difference == 100.0
    assert msgspec.json.encode(one)


@pytest.mark.parametrize("count", [0, 1, 27])
def test_number_of_captures_is_bounded(count: int) -> None:
    with pytest.raises(ComparisonError):
        compare([loaded(measured(values=HIGH))] * count)
