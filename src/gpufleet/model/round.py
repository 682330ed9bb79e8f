"""A round of a reader: what one pass gave."""

import msgspec

from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Sample


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass of one lane of one reader gave.

    Attributes:
        samples: one a subject, complete for the lane: a device of an earlier round that is not here is gone.
        events: what happened since the pass before.
        inventory: the PCI display controllers, if this reader lists them.
        machine: evidence of the machine's identity, if this reader reads it.
        errors: words of failures that left part of the pass without values; the agent shows the first
            as `last_error` and calls the pass partial.
    """

    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    inventory: tuple[PciFunction, ...] | None = None
    machine: Machine | None = None
    errors: tuple[str, ...] = ()
