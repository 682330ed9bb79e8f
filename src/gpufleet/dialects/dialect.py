"""What a dialect is: a table of another project's families, and how its labels name a device."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.reading import Value
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.view import View, normalise_pci_address


class FamilyMapping(msgspec.Struct, frozen=True, kw_only=True):
    """One family of the other project, and the catalogue's metric that it is.

    Attributes:
        name: theirs.
        metric: ours.
        of: what it is told of; empty for whatever the metric can be about.
        times, over: theirs `* times / over` is ours.
        dims: their labels that are our dimensions, in our order.
        labels: our dimensions where the family is one combination of them; it has no label of its own for them.
        states: for a state of ours, the name that each of their numbers means, from 0 up.
        zero: what it means that they write 0, where that is no measurement.
        real: whether they write a number with a fraction.
        counter: whether they call it a counter.
        unread: why theirs is not believed, or empty. Ours is written under this name all the same.
        written: whether ours is written under this name; of two names of one thing, only the one in use.
    """

    name: str
    metric: str
    of: tuple[Subject, ...] = ()
    times: int = 1
    over: int = 1
    dims: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    zero: Reason | None = None
    real: bool = False
    counter: bool = False
    unread: str = ""
    written: bool = True

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What it is told of."""
        return self.of or CATALOGUE[self.metric].subjects


class SeriesSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What a series is about.

    Attributes:
        machine: name of the machine as the exporter tells it; empty where it does not.
        view: the device, or None for the machine itself.
        name: product name, where the labels tell it.
        guest: whether the machine is a virtual one that the exporter's machine tells of, and not itself.
    """

    machine: str
    view: View | None
    name: str = ""
    guest: bool = False


MappedValue = tuple[str, tuple[str, ...], Value | Absent]
"""Catalogue name, values of its dimensions, and a reading."""

LabelReader = Callable[[ImportedSeries, float], Iterable[MappedValue]]
"""Reads a family whose labels say what its value means. What is of the machine is told of it, whatever device the
series names."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One project's names.

    Attributes:
        name: for configuration and output.
        prefixes: of every family that is this project's.
        families: by their name.
        unread: families that are left alone on purpose, to why.
        identify: reads a series' labels; None if they do not name what it is about.
        self_prefixes: how families begin that are the exporter's word about itself.
        special: families whose labels say what their value means, to how they are read.
        measured: a family whose value is when a device's readings were measured, in seconds since 1970, with the lane
            in its label `lane`; empty where the project tells no times.
        labels: that its series have, beside dimensions of families and labels of targets: those that are read, and
            those that are known to say nothing more; None where that is not judged.
    """

    name: str
    prefixes: tuple[str, ...]
    families: Mapping[str, FamilyMapping]
    unread: Mapping[str, str]
    identify: Callable[[ImportedSeries], SeriesSubject | None]
    self_prefixes: tuple[str, ...] = ()
    special: Mapping[str, LabelReader] = {}
    measured: str = ""
    labels: frozenset[str] | None = None

    def is_mine(self, family: str) -> bool:
        """Return whether a family is of this project."""
        return family.startswith(self.prefixes)

    def knows(self, family: str) -> bool:
        """Return whether there is a row for a family."""
        return family in self.families or family in self.special or self.why_unread(family) is not None

    def why_unread(self, family: str) -> str | None:
        """Return why a family is left alone on purpose, or None."""
        known = self.families.get(family)
        if known is not None:
            return known.unread or None
        return self.unread.get(family) or ("the exporter's word about itself" if self._is_of_itself(family) else None)

    def _is_of_itself(self, family: str) -> bool:
        return bool(self.self_prefixes) and family.startswith(self.self_prefixes)


def table(*families: FamilyMapping) -> dict[str, FamilyMapping]:
    """Return families by name."""
    return {family.name: family for family in families}


def guest_name(labels: Mapping[str, str]) -> str:
    """Return the virtual machine that a series of ours is about, or empty where it is about none.

    An agent writes who it is into each series of it, under its own names and others'.
    """
    name = labels.get("vm_name") or labels.get("vm_uid") or ""
    namespace = labels.get("namespace", "")
    return f"{namespace}/{name}" if name and namespace else name


def address_of(text: str) -> str | None:
    """Return a PCI address as sysfs writes it, or None if the text is none."""
    try:
        return normalise_pci_address(text) if text else None
    except ValueError:
        return None


def small_number(text: str) -> int | None:
    """Return a position in a list, or None if the text is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
