"""Short forms of identities, and suggestions for unknown names."""

import pytest

from gpufleet.hub.query.names import similar_names, view_prefixes, without_machine_ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU-5a61", {"gpu/GPU-5a61", "mig/MIG-GPU-5a61", "vgpu/GPU-5a61"}),
        ("gpu-5A61", {"gpu/GPU-5a61", "gpu/GPU-5A61"}),
        ("5a61", {"gpu/GPU-5a61", "mig/MIG-5a61", "vgpu/5a61"}),
        ("MIG-5a61", {"mig/MIG-5a61"}),
    ],
)
def test_uuid_prefix_stands_for_starts_of_view_keys(text: str, expected: set[str]) -> None:
    assert expected <= set(view_prefixes(text))


@pytest.mark.parametrize("text", ["", "5a6", "MI", "5a61\n", "5" * 300])
def test_text_that_is_no_uuid_prefix_stands_for_nothing(text: str) -> None:
    assert view_prefixes(text) == ()


def test_short_text_after_the_kind_is_not_a_prefix() -> None:
    assert "gpu/GPU-5a6" not in view_prefixes("GPU-5a6")


@pytest.mark.parametrize(
    ("name", "first"), [("sim1", "sim-1"), ("SIM-1", "sim-1"), ("prodution", "production"), ("zzz", None)]
)
def test_similar_names_are_suggested(name: str, first: str | None) -> None:
    found = similar_names(name, ["sim-1", "production", "staging"])
    assert next(iter(found), None) == first


def test_very_long_name_has_no_suggestions() -> None:
    assert similar_names("a" * 10_000, ["a" * 250]) == ()


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("set target.machine to an id (m-abcdefghij27, m-bbcdefghij27)", "set target.machine to an id"),
        ("several report it: m-abcdefghij27, m-bbcdefghij27", "several report it"),
        ("no machine of cluster 'c' has the id or name 'm-1'",) * 2,
    ],
)
def test_machine_ids_are_left_out_of_an_explanation(text: str, without: str) -> None:
    assert without_machine_ids(text) == without
