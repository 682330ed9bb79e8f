"""What a dialect is: a table of another project's families, and how its labels name a device."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Value
from gpufleet.model.series import Series
from gpufleet.model.view import View


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family of the other project, and the catalogue's metric that it is.

    Attributes:
        name: theirs.
        metric: ours.
        times, over: theirs `* times / over` is ours.
        dims: their labels that are our dimensions, in our order.
        zero: what it means that they write 0, where that is no measurement.
        real: whether they write a number with a fraction.
        counter: whether they call it a counter.
    """

    name: str
    metric: str
    times: int = 1
    over: int = 1
    dims: tuple[str, ...] = ()
    zero: Reason | None = None
    real: bool = False
    counter: bool = False


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a series is about.

    Attributes:
        machine: name of the machine as the exporter tells it; empty where it does not.
        view: the device, or None for the machine itself.
        name: product name, where the labels tell it.
    """

    machine: str
    view: View | None
    name: str = ""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One project's names.

    Attributes:
        name: for configuration and output.
        prefixes: of every family that is this project's.
        families: by their name.
        unread: families that are left alone on purpose, to why.
        subject: reads a series' labels; None if they do not name what it is about.
        special: families whose labels say what their value means, to how they are read: catalogue name and reading.
    """

    name: str
    prefixes: tuple[str, ...]
    families: Mapping[str, Family]
    unread: Mapping[str, str]
    subject: Callable[[Series], Subject | None]
    special: Mapping[str, Callable[[Series, float], Iterable[tuple[str, Value | Absent]]]] = {}

    def is_mine(self, family: str) -> bool:
        """Tell whether a family is of this project."""
        return family.startswith(self.prefixes)


def table(*families: Family) -> dict[str, Family]:
    """Return families by name."""
    return {family.name: family for family in families}
