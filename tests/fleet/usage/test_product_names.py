"""Product names over time: of several readers and views, and the price at the time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.product_names import names_of, without_later_claims
from gpufleet.fleet.usage.units import PhysicalUnit
from gpufleet.model.stored.readings import StoredText


def text(at: int, name: str, reader: str = "nvml", machine: str = "m") -> StoredText:
    return StoredText(machine=machine, view="gpu/GPU-1", reader=reader, at=at, text=name)


def test_name_holds_until_the_next_one() -> None:
    assert names_of([text(1, "A"), text(3, "B"), text(5, "A")]) == ((1, "A"), (3, "B"), (5, "A"))
    assert names_of([]) == ()


def test_first_reader_by_precedence_names_the_gpu() -> None:
    texts = [
        text(1, "import", "dcgm_exporter"),
        text(2, "nvml"),
        text(3, "smi", "nvidia_smi"),
        text(4, "import 2", "x"),
    ]
    assert names_of(texts) == ((1, "import"), (2, "nvml"))


def test_moved_gpu_has_the_name_of_its_newest_machine() -> None:
    assert names_of([text(1, "A"), text(4, "B", machine="n")]) == ((1, "A"), (4, "B"))


def test_unit_has_its_first_name_before_all_reports() -> None:
    unit = PhysicalUnit("c", "u", (), "C", {}, models=((3, "A"), (5, "B")))
    assert [unit.model_at(at) for at in (0, 3, 4, 5, 9)] == ["A", "A", "A", "B", "B"]
    assert PhysicalUnit("c", "u", (), "C", {}).model_at(0) == "C"


TEXTS = st.builds(text, st.integers(1, 9), st.sampled_from("AB"), st.sampled_from(["nvml", "dcgm", "x"]), st.just("m"))


@given(st.lists(TEXTS, max_size=9), st.integers(1, 9))
def test_later_reports_do_not_change_the_past(texts: list[StoredText], now: int) -> None:
    ordered = sorted(texts, key=lambda one: one.at)
    before = names_of([one for one in ordered if one.at <= now])
    assert before == tuple(one for one in names_of(ordered) if one[0] <= now)


def test_guest_names_a_gpu_only_if_no_host_does() -> None:
    inside = text(4, "cheap", machine="vm")
    assert names_of([inside], {"vm"}) == ((4, "cheap"),)
    assert names_of([text(1, "A", "dcgm"), inside], {"vm"}) == ((1, "A"),)


@pytest.mark.parametrize(("host", "kept"), [([3, 6], [1, 3, 6]), ([1], [1]), ([], [])])
def test_claims_of_a_guest_count_until_its_host_names_the_gpu(host: list[int], kept: list[int]) -> None:
    claims = [text(1, "cheap", machine="vm"), text(4, "cheaper", machine="vm")]
    texts = [text(at, "A") for at in host]
    found = without_later_claims([*claims, *texts], {("vm", "gpu/GPU-1")})
    assert sorted(one.at for one in found) == kept
    assert [one.at for one in without_later_claims(claims, ())] == [1, 4]


def test_first_guest_names_a_gpu_that_several_report() -> None:
    texts = [text(1, "A", machine="vm"), text(3, "C", "x", machine="vm-2"), text(5, "B", machine="vm")]
    assert names_of(texts, {"vm", "vm-2"}) == ((1, "A"), (5, "B"))


def test_guest_names_a_gpu_only_while_it_has_it() -> None:
    texts = [text(1, "A", machine="vm"), text(3, "C", machine="vm-2"), text(7, "B", machine="vm")]
    stays = {("vm", "gpu/GPU-1"): ((0, 4),), ("vm-2", "gpu/GPU-1"): ((4, 9),)}
    assert names_of(texts, {"vm", "vm-2"}, stays) == ((1, "A"), (4, "C"))
