"""What a request of another system says, once it is read."""

from collections.abc import Mapping

import msgspec

from gpufleet.model.event import Event
from gpufleet.model.holding import Holder
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.text import clean

MAX_NAME = 253
"""Characters of the name of a machine or a device."""


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says.

    Attributes:
        machines: evidence of each machine, and its samples, of any instants.
        events: of each machine.
        holders: of each machine, key of a view and an instant to the holders that series of it name, where any do.
        samples: how many there were in all, or log records.
        drift: names under a known project's prefix that its table does not have, to how many samples had them.
        labels: of a known project's series that its table does not have, to how many series of them are new here.
        others: names of no known project, to how many samples had them: they are none of the hub's business.
        nameless: samples of which the labels do not tell which device or which machine they are of, and those of
            virtual machines that an agent on their host tells of: whose they are is its batches' to say.
        problems: samples that could not be taken, by why.
        other_histograms, other_exemplars: of remote write, those of others; histograms are among `samples`, too.
    """

    machines: Mapping[Machine, tuple[Sample, ...]]
    samples: int
    drift: Mapping[str, int]
    others: Mapping[str, int]
    nameless: int
    problems: Mapping[str, int]
    events: Mapping[Machine, tuple[Event, ...]] = {}
    holders: Mapping[Machine, Mapping[tuple[str, int], frozenset[Holder]]] = {}
    labels: Mapping[str, int] = {}
    other_histograms: int = 0
    other_exemplars: int = 0

    @property
    def taken(self) -> int:
        """Samples that somebody here knows what to do with."""
        left = sum(self.others.values()) + self.nameless
        return self.samples - left - sum(self.drift.values()) - sum(self.problems.values())


def can_be_called(name: str) -> bool:
    """Tell whether a machine could be called so."""
    return 0 < len(name) <= MAX_NAME and name == clean(name)


def has_a_name(sample: Sample) -> bool:
    """Tell whether a batch could carry the name of what a sample is about."""
    view = sample.view
    names = () if view is None else (view.uuid, view.instance, view.parent)
    return all(name is None or 0 < len(name) <= MAX_NAME for name in names)
