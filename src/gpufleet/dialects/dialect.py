"""Dialect: another project's metric families, and the identification of devices by its labels."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.reading import Value
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.view import View, normalise_pci_address


class FamilyMapping(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping of a metric family of another project to a catalogue metric.

    Attributes:
        name: name of the family.
        metric: name in the catalogue.
        of: subjects of the family; empty for all subjects of the metric.
        times, over: foreign value `* times / over` is our value.
        dims: labels of the family for our dimensions, in our order.
        labels: values of our dimensions, if the family is one fixed combination of them.
        states: for a state metric, state names by number, from 0 up.
        zero: reason of absence for the value 0, if it is not a measurement.
        real: whether the family has a fractional number.
        counter: whether the family is declared as a counter.
        unread: reason for not believing the other project's value, or empty. The family is exported all the same, and
            imported from a page that gpufleet wrote.
        written: whether the family is exported; of two names of one metric, only the current one.
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
        """Subjects of the family."""
        return self.of or CATALOGUE[self.metric].subjects


class SeriesSubject(msgspec.Struct, frozen=True, kw_only=True):
    """Subject of a series.

    Attributes:
        machine: machine name from the exporter, or empty.
        view: device, or None for the machine itself.
        name: product name from the labels, or empty.
        texts: info metrics of the device in the labels, with their texts; empty texts are ignored.
        guest: whether the machine is a virtual machine on the exporter's machine.
        held: device whose holder the labels name, if it is another one than `view`.
    """

    machine: str
    view: View | None
    name: str = ""
    texts: tuple[tuple[str, str], ...] = ()
    guest: bool = False
    held: View | None = None


MappedValue = tuple[str, tuple[str, ...], Value | Absent]
"""Catalogue name, values of its dimensions, and a reading."""

LabelReader = Callable[[ImportedSeries, float], Iterable[MappedValue]]
"""Reader of a family whose labels define the meaning of its value. Machine metrics are attributed to the machine,
whatever device the series has."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """Metric families of one project.

    Attributes:
        name: name in configuration and output.
        prefixes: prefixes of all families of the project.
        families: mappings by family name.
        unread: families that are deliberately not imported, to the reason.
        identify: returns the subject of a series, or None if its labels do not identify one.
        self_prefixes: prefixes of families about the exporter itself.
        special: families whose labels define the meaning of their value, to their reader.
        measured: family with the time of measurement of a device's readings, in seconds since 1970, with the lane in
            its label `lane`; empty if the project has no such family.
        intervals: family with the interval of a reader's lane in seconds, with the labels `reader` and `lane`; empty if
            the project has no such family.
        labels: known labels beside dimensions of families and labels of targets: imported or without further meaning;
            None if unknown labels are not checked.
        lists_ecc_modes: whether a page has the cells of `nvidia-smi`, without those that a board does not have: see
            `fleet.ecc.NO_ECC`.
    """

    name: str
    prefixes: tuple[str, ...]
    families: Mapping[str, FamilyMapping]
    unread: Mapping[str, str]
    identify: Callable[[ImportedSeries], SeriesSubject | None]
    self_prefixes: tuple[str, ...] = ()
    special: Mapping[str, LabelReader] = {}
    measured: str = ""
    intervals: str = ""
    labels: frozenset[str] | None = None
    lists_ecc_modes: bool = False

    def is_mine(self, family: str) -> bool:
        """Return whether a family belongs to this project."""
        return family.startswith(self.prefixes)

    def knows(self, family: str) -> bool:
        """Return whether the dialect has a row for a family."""
        return family in self.families or family in self.special or self.why_unread(family) is not None

    def why_unread(self, family: str) -> str | None:
        """Return the reason for not importing a family, or None."""
        known = self.families.get(family)
        if known is not None:
            return known.unread or None
        return self.unread.get(family) or ("status of the exporter itself" if self.is_about_exporter(family) else None)

    def is_about_exporter(self, family: str) -> bool:
        """Return whether a family is about the exporter itself."""
        return bool(self.self_prefixes) and family.startswith(self.self_prefixes)


def table(*families: FamilyMapping) -> dict[str, FamilyMapping]:
    """Return families by name."""
    return {family.name: family for family in families}


def guest_name(labels: Mapping[str, str]) -> str:
    """Return the virtual machine of a series from our agent, or empty if there is none.

    An agent adds these labels to each series of a guest, also in other dialects.
    """
    name = labels.get("vm_name") or labels.get("vm_uid") or ""
    namespace = labels.get("namespace", "")
    return f"{namespace}/{name}" if name and namespace else name


def text_of(labels: Mapping[str, str], *names: str) -> str:
    """Return the first text among the labels, or an empty text.

    Placeholders and texts of errors do not count: exporters copy them from nvidia-smi (`[GPU is lost]`) or DCGM
    (`<<<NOT_SUPPORTED>>>`).
    """
    texts = (labels.get(name, "") for name in names)
    return next((text for text in texts if text and text_reason(text) is None and not text.startswith("<<<")), "")


def address_of(text: str) -> str | None:
    """Return a PCI address as sysfs writes it, or None if the text is not an address."""
    try:
        return normalise_pci_address(text) if text else None
    except ValueError:
        return None


def small_number(text: str) -> int | None:
    """Return a number below 100,000, or None if the text is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
