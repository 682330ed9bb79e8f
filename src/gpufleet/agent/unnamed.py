"""MIG devices that one reader cannot name and another one can: shown once, under their name. Pure."""

import msgspec

from gpufleet.agent.outcome import Outcome
from gpufleet.agent.state import State
from gpufleet.model.view import View, ViewKind


def without_unnamed(outcome: Outcome, state: State) -> Outcome:
    """Return a pass without MIG devices that have no UUID, of GPUs whose MIG devices another reader tells by UUID.

    They are not joined by their instance ids: those are reused, and whose they are now only a new list can tell.
    """
    done = outcome.round
    if done is None or not any(_is_unnamed(sample.view) for sample in done.samples):
        return outcome
    named = {
        one.sample.view.parent
        for kept in state.views().values()
        for (reader, _), one in kept.items()
        if reader != outcome.status.reader and one.sample.view is not None and one.sample.view.kind is ViewKind.MIG
        if one.sample.view.uuid is not None
    }
    samples = tuple(
        sample
        for sample in done.samples
        if not (_is_unnamed(sample.view) and sample.view is not None and sample.view.parent in named)
    )
    return msgspec.structs.replace(outcome, round=msgspec.structs.replace(done, samples=samples))


def _is_unnamed(view: View | None) -> bool:
    return view is not None and view.kind is ViewKind.MIG and view.uuid is None
