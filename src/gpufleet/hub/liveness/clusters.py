"""A cluster's freshness out of its senders' and machines'. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gpufleet.hub.liveness.judging import complete_up_to
from gpufleet.hub.liveness.senders import SenderLife, answered_at
from gpufleet.model.answer import Coverage
from gpufleet.model.liveness import Freshness, Liveness, State
from gpufleet.model.time import to_datetime

CALM = (State.LIVE, State.RETIRED)
"""States that make nothing partial."""

NAMED = 5
"""Senders and machines that are named where something is wrong with them; the rest is counted."""


def roll_up(
    senders: Sequence[tuple[SenderLife, Liveness]],
    machines: Sequence[Liveness],
    coverage: Coverage | None,
    *,
    closed: bool,
    missing: Mapping[tuple[str, str], int],
) -> Freshness:
    """Return how fresh a cluster is.

    Args:
        senders: its senders, each with its judgement.
        machines: judgements of its machines.
        coverage: its GPUs, as far as they are known.
        closed: it was closed: nothing is expected of it.
        missing: batches lost or on the way, by cluster and sender.
    """
    active = [(life, one) for life, one in senders if one.state is not State.RETIRED]
    best = min(active or senders, key=lambda one: (one[0].never, one[0].silent_seconds), default=None)
    upper = [None if one.state is State.RETIRED else complete_up_to(life) for life, one in senders]
    known = [at for at in upper if at is not None]
    return Freshness(
        liveness=Liveness(
            state=State.RETIRED if closed else best[1].state if best else State.NEVER_SEEN,
            silent_seconds=best[1].silent_seconds if best else None,
            unverified=best is not None and best[1].unverified,
            partial=() if closed else tuple(_partial(senders, machines, coverage)),
            suspect=tuple(_suspect(senders, machines)),
        ),
        heard_at=to_datetime(answered_at(best[0].heard)) if best and not best[0].never else None,
        senders=in_order(Counter(one.state for _, one in senders)),
        machines=in_order(Counter(one.state for one in machines)),
        complete_up_to=to_datetime(min(known)) if known else None,
        not_waited_for=len(upper) - len(known),
        missing_batches=sum(missing.get((life.cluster, life.sender), 0) for life, _ in senders),
        dropped_batches=sum(life.heard.heartbeat.dropped_total for life, _ in senders if life.heard.heartbeat),
        queued_batches=sum(life.heard.heartbeat.queue_records for life, _ in active if life.heard.heartbeat),
        clock_ahead_seconds=max((life.clock_ahead_seconds for life, _ in active), key=abs, default=None),
    )


def in_order(counted: Counter[State]) -> dict[State, int]:
    """Return the states that anybody is in, the best first, with how many are."""
    return {state: counted[state] for state in State if counted[state]}


def _partial(
    senders: Sequence[tuple[SenderLife, Liveness]], machines: Sequence[Liveness], coverage: Coverage | None
) -> list[str]:
    words = []
    for what, found in (("senders", [one for _, one in senders]), ("machines", machines)):
        expected = [one for one in found if one.state is not State.RETIRED]
        silent = [one for one in expected if one.state not in CALM]
        if silent:
            words.append(f"{len(silent)} of {len(expected)} {what} are not live")
    backlog = [life.sender for life, one in senders if one.partial]
    if backlog:
        words.append(f"batches wait at {_named(backlog)}")
    if coverage is not None and coverage.expected is not None and coverage.reporting < coverage.expected:
        words.append(f"GPUs reporting: {coverage.words}")
    return words


def _suspect(senders: Sequence[tuple[SenderLife, Liveness]], machines: Sequence[Liveness]) -> list[str]:
    words = [f"{life.sender}: {why}" for life, one in senders for why in one.suspect]
    shown = words[:NAMED] + ([f"and {len(words) - NAMED} more"] if len(words) > NAMED else [])
    clones = sum(bool(one.suspect) for one in machines if one.state is not State.RETIRED)
    return [*shown, *([f"evidence of {clones} machines contradicts another machine's"] if clones else [])]


def _named(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
