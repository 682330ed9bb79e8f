"""Normalised content of a request from another system."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gpufleet.hub.flush.names import Span, is_within
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.text import clean

MAX_NAME = 253
"""Maximum length of the name of a machine or device, in characters."""


class ImportedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a request by machine, and counts of what was not used.

    Attributes:
        machines: samples of each machine, of any instants.
        events: events of each machine.
        holders: holders named by series, by machine and by key of the view and instant; only views with holders.
        samples: total number of samples or log records.
        drift: samples by name, for names with a known project's prefix that its table does not have.
        labels: new series by label name, for labels of a known project that its table does not have.
        others: samples by name, for names of no known project; the hub ignores them.
        unattributed: samples whose labels identify no device or machine, and samples of virtual machines reported by an
            exporter on their host, which are left to the batches of the agent there.
        problems: unusable samples, by reason.
        other_histograms, other_exemplars: in remote write, those of unknown projects; such histograms also count in
            `samples`.
    """

    machines: Mapping[Machine, tuple[Sample, ...]]
    samples: int
    drift: Mapping[str, int]
    others: Mapping[str, int]
    unattributed: int
    problems: Mapping[str, int]
    events: Mapping[Machine, tuple[Event, ...]] = {}
    holders: Mapping[Machine, Mapping[tuple[str, int], frozenset[Holder]]] = {}
    labels: Mapping[str, int] = {}
    other_histograms: int = 0
    other_exemplars: int = 0

    @property
    def accepted(self) -> int:
        """Number of samples that are used."""
        ignored = sum(self.others.values()) + self.unattributed
        return self.samples - ignored - sum(self.drift.values()) - sum(self.problems.values())

    def without(self, machines: Collection[Machine], problem: str) -> "ImportedRequest":
        """Return the request without some machines, whose values and events count as a problem."""
        if not machines:
            return self
        values = (len(one.values) for machine in machines for one in self.machines.get(machine, ()))
        dropped = sum(values) + sum(len(self.events.get(machine, ())) for machine in machines)
        count = min(dropped, self.accepted)  # values from labels are not samples
        return msgspec.structs.replace(
            self,
            machines={one: found for one, found in self.machines.items() if one not in machines},
            events={one: found for one, found in self.events.items() if one not in machines},
            holders={one: found for one, found in self.holders.items() if one not in machines},
            problems={**self.problems, problem: count},
        )

    def within(self, named: Mapping[Machine, Sequence[Span]]) -> tuple["ImportedRequest", int]:
        """Return the request without samples and holders from other times, and the number of those.

        Args:
            named: machine to the times in which it had its name; others are not changed.
        """
        machines = {
            one: tuple([sample for sample in found if is_within(sample.measured_at, named.get(one))])
            for one, found in self.machines.items()
        }
        holders = {
            one: {place: held for place, held in found.items() if is_within(place[1], named.get(one))}
            for one, found in self.holders.items()
        }
        found = msgspec.structs.replace(self, machines=machines, holders=holders)
        return found, _used(self) - _used(found)


def _used(request: ImportedRequest) -> int:
    """Return the number of samples and holders of a request."""
    holders = (len(held) for found in request.holders.values() for held in found.values())
    return sum(map(len, request.machines.values())) + sum(holders)


def is_valid_name(name: str) -> bool:
    """Return whether a text is a valid machine name."""
    return 0 < len(name) <= MAX_NAME and name == clean(name)


def has_valid_names(sample: Sample) -> bool:
    """Return whether the names of a sample's view fit into a batch."""
    view = sample.view
    names = () if view is None else (view.uuid, view.instance, view.parent)
    return all(name is None or 0 < len(name) <= MAX_NAME for name in names)
