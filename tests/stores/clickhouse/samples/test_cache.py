"""What is remembered of a machine is what the tables have, whoever asks and writes at once."""

from gpufleet.stores.clickhouse.samples.cache import ContentCache

ONE, OTHER = ("c", "one"), ("c", "other")


def test_answer_is_cached_until_a_write_about_the_machine() -> None:
    remembered = ContentCache[str](enabled=True)
    with remembered.reading([ONE, OTHER]) as may_keep:
        remembered.keep(may_keep, ONE, "first")
        remembered.keep(may_keep, OTHER, "other")
    with remembered.writing([ONE]):
        assert remembered.known([ONE, OTHER]) == {OTHER: "other"}
    assert remembered.known([ONE, OTHER]) == {OTHER: "other"}
    with remembered.reading([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "second")
    assert remembered.known([ONE]) == {ONE: "second"}


def test_an_answer_that_a_write_may_have_overtaken_is_not_kept() -> None:
    remembered = ContentCache[str](enabled=True)
    with remembered.reading([ONE, OTHER]) as before, remembered.reading([ONE]) as another:
        with remembered.writing([ONE]), remembered.reading([ONE, OTHER]) as within:
            remembered.keep(before, ONE, "before the write")
            remembered.keep(within, ONE, "half of the write")
        remembered.keep(within, ONE, "half of the write")
        remembered.keep(another, ONE, "before the write")
        remembered.keep(before, OTHER, "other")
    assert remembered.known([ONE, OTHER]) == {OTHER: "other"}


def test_failed_write_also_clears_the_cache() -> None:
    remembered = ContentCache[str](enabled=True)
    with remembered.reading([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "before")
    try:
        with remembered.writing([ONE]):
            raise OSError("no space left")
    except OSError:
        assert remembered.known([ONE]) == {}
    with remembered.reading([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "after")
    assert remembered.known([ONE]) == {ONE: "after"}


def test_nothing_is_kept_where_others_may_write() -> None:
    remembered = ContentCache[str](enabled=False)
    with remembered.reading([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "first")
    assert remembered.known([ONE]) == {}


def test_it_forgets_everything_when_it_is_full() -> None:
    remembered = ContentCache[str](enabled=True)
    machines = [("c", f"m{number}") for number in range(1000)]
    with remembered.reading(machines) as may_keep:
        for machine in machines:
            remembered.keep(may_keep, machine, "a hundred views", 100)
    known = remembered.known(machines)
    assert len(known) <= 500
    assert machines[-1] in known
    with remembered.reading([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "more than there is room for", 10**9)
    assert remembered.known([*machines, ONE]) == known
