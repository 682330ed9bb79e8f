"""Order of listed machines, compared with a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.registry.machines import MachineOrder

MACHINE = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.sampled_from("123456"))


@given(
    st.lists(MACHINE, unique_by=lambda one: one[2]),
    st.sets(st.sampled_from("123456")),
    st.none() | MACHINE,
    st.none() | st.sampled_from("abcd"),
)
def test_pages_equal_pages_of_a_sorted_list(
    machines: list[tuple[str, str, str]], gone: set[str], place: tuple[str, str, str] | None, cluster: str | None
) -> None:
    order = MachineOrder()
    for one in machines:
        order.add(*one)
    for one in machines:
        if one[2] in gone:
            order.remove(*one)
    left = sorted(one for one in machines if one[2] not in gone and cluster in (None, one[0]))
    assert list(order.after(cluster, place)) == [one[2] for one in left if place is None or one > place]
    for name in "abcd":
        own = [one[2] for one in machines if one[0] == name and one[2] not in gone]
        assert order.count(name) == len(own)
