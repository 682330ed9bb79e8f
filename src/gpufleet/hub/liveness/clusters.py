"""A cluster's freshness out of what its senders and machines amount to. Pure."""

from collections import Counter
from collections.abc import Sequence

from gpufleet.hub.liveness.senders import answered_at
from gpufleet.hub.liveness.tally import Tally
from gpufleet.model.answer import Coverage
from gpufleet.model.liveness import Freshness, Liveness, State
from gpufleet.model.time import to_datetime

NAMED = 5
"""Senders and machines that are named where something is wrong with them; the rest is counted."""


def roll_up(total: Tally, coverage: Coverage | None, *, closed: bool, missing: int) -> Freshness:
    """Return how fresh a cluster is.

    Args:
        total: its senders and machines.
        coverage: its GPUs, as far as they are known.
        closed: it was closed: nothing is expected of it.
        missing: batches of it lost or on the way.
    """
    life, judged = total.nearest or (None, None)
    return Freshness(
        liveness=Liveness(
            state=State.RETIRED if closed else judged.state if judged else State.NEVER_SEEN,
            silent_seconds=judged.silent_seconds if judged else None,
            unverified=judged is not None and judged.unverified,
            partial=() if closed else tuple(_partial(total, coverage)),
            suspect=tuple(_suspect(total)),
        ),
        heard_at=to_datetime(answered_at(life.heard)) if life and not life.never else None,
        senders=in_order(total.senders),
        machines=in_order(total.machines),
        complete_up_to=to_datetime(total.complete_up_to) if total.complete_up_to is not None else None,
        not_waited_for=total.not_waited_for,
        missing_batches=missing,
        dropped_batches=total.dropped,
        queued_batches=total.queued,
        clock_ahead_seconds=total.ahead,
    )


def in_order(counted: Counter[State]) -> dict[State, int]:
    """Return the states that anybody is in, the best first, with how many are."""
    return {state: counted[state] for state in State if counted[state]}


def _partial(total: Tally, coverage: Coverage | None) -> list[str]:
    words = []
    for what, found in (("senders", total.senders), ("machines", total.machines)):
        expected = found.total() - found[State.RETIRED]
        silent = expected - found[State.LIVE]
        if silent:
            words.append(f"{silent} of {expected} {what} are not live")
    if total.backlog:
        words.append(f"batches wait at {_named(total.backlog)}")
    if coverage is not None and coverage.expected is not None and coverage.reporting < coverage.expected:
        words.append(f"GPUs reporting: {coverage.words}")
    return words


def _suspect(total: Tally) -> list[str]:
    words = [f"{sender}: {why}" for sender, why in total.suspect]
    shown = words[:NAMED] + ([f"and {len(words) - NAMED} more"] if len(words) > NAMED else [])
    clones = total.clones
    return [*shown, *([f"evidence of {clones} machines contradicts another machine's"] if clones else [])]


def _named(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
