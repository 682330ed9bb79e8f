"""What is remembered of a machine is what the tables have, whoever asks and writes at once."""

from gpufleet.stores.clickhouse.samples.cache import Remembered

ONE, OTHER = ("c", "one"), ("c", "other")


def test_what_was_asked_is_kept_until_a_write_tells_of_the_machine() -> None:
    remembered = Remembered[str](keeps=True)
    with remembered.asking([ONE, OTHER]) as may_keep:
        remembered.keep(may_keep, ONE, "first")
        remembered.keep(may_keep, OTHER, "other")
    with remembered.telling([ONE]):
        assert remembered.known([ONE, OTHER]) == {OTHER: "other"}
    assert remembered.known([ONE, OTHER]) == {OTHER: "other"}
    with remembered.asking([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "second")
    assert remembered.known([ONE]) == {ONE: "second"}


def test_an_answer_that_a_write_may_have_overtaken_is_not_kept() -> None:
    remembered = Remembered[str](keeps=True)
    with remembered.asking([ONE, OTHER]) as before, remembered.asking([ONE]) as another:
        with remembered.telling([ONE]), remembered.asking([ONE, OTHER]) as within:
            remembered.keep(before, ONE, "before the write")
            remembered.keep(within, ONE, "half of the write")
        remembered.keep(within, ONE, "half of the write")
        remembered.keep(another, ONE, "before the write")
        remembered.keep(before, OTHER, "other")
    assert remembered.known([ONE, OTHER]) == {OTHER: "other"}


def test_a_write_that_fails_lets_go_too_and_does_not_hold_later_answers_off() -> None:
    remembered = Remembered[str](keeps=True)
    with remembered.asking([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "before")
    try:
        with remembered.telling([ONE]):
            raise OSError("no space left")
    except OSError:
        assert remembered.known([ONE]) == {}
    with remembered.asking([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "after")
    assert remembered.known([ONE]) == {ONE: "after"}


def test_nothing_is_kept_where_others_may_write() -> None:
    remembered = Remembered[str](keeps=False)
    with remembered.asking([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "first")
    assert remembered.known([ONE]) == {}


def test_it_forgets_everything_when_it_is_full() -> None:
    remembered = Remembered[str](keeps=True)
    machines = [("c", f"m{number}") for number in range(1000)]
    with remembered.asking(machines) as may_keep:
        for machine in machines:
            remembered.keep(may_keep, machine, "a hundred views", 100)
    known = remembered.known(machines)
    assert len(known) <= 500
    assert machines[-1] in known
    with remembered.asking([ONE]) as may_keep:
        remembered.keep(may_keep, ONE, "more than there is room for", 10**9)
    assert remembered.known([*machines, ONE]) == known
