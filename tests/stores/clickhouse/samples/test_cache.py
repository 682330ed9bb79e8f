"""Content cache: cached answers equal the tables during concurrent reads and writes."""

from gpufleet.stores.clickhouse.samples.cache import ContentCache

ONE, OTHER = ("c", "one"), ("c", "other")


def test_answer_is_cached_until_a_write_about_the_machine() -> None:
    cache = ContentCache[str](enabled=True)
    with cache.reading([ONE, OTHER]) as may_keep:
        cache.keep(may_keep, ONE, "first")
        cache.keep(may_keep, OTHER, "other")
    with cache.writing([ONE]):
        assert cache.known([ONE, OTHER]) == {OTHER: "other"}
    assert cache.known([ONE, OTHER]) == {OTHER: "other"}
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "second")
    assert cache.known([ONE]) == {ONE: "second"}


def test_answer_concurrent_with_a_write_is_not_cached() -> None:
    cache = ContentCache[str](enabled=True)
    with cache.reading([ONE, OTHER]) as before, cache.reading([ONE]) as another:
        with cache.writing([ONE]), cache.reading([ONE, OTHER]) as within:
            cache.keep(before, ONE, "before the write")
            cache.keep(within, ONE, "half of the write")
        cache.keep(within, ONE, "half of the write")
        cache.keep(another, ONE, "before the write")
        cache.keep(before, OTHER, "other")
    assert cache.known([ONE, OTHER]) == {OTHER: "other"}


def test_failed_write_also_clears_the_cache() -> None:
    cache = ContentCache[str](enabled=True)
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "before")
    try:
        with cache.writing([ONE]):
            raise OSError("no space left")
    except OSError:
        assert cache.known([ONE]) == {}
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "after")
    assert cache.known([ONE]) == {ONE: "after"}


def test_disabled_cache_keeps_nothing() -> None:
    cache = ContentCache[str](enabled=False)
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "first")
    assert cache.known([ONE]) == {}


def test_full_cache_is_cleared() -> None:
    cache = ContentCache[str](enabled=True)
    machines = [("c", f"m{number}") for number in range(1000)]
    with cache.reading(machines) as may_keep:
        for machine in machines:
            cache.keep(may_keep, machine, "a hundred views", 100)
    known = cache.known(machines)
    assert len(known) <= 500
    assert machines[-1] in known
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "exceeds the capacity", 10**9)
    assert cache.known([*machines, ONE]) == known
