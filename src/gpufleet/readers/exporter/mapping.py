"""From a page to samples of one machine: which dialect it is read in, and of whom it may speak.

A page, within the bounds of one machine's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.codecs.prometheus_text.page import Page, TextLimits
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.known import DIALECTS, spoken
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.reading import read
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ReaderError, WireError
from gpufleet.model.reading import Sample
from gpufleet.model.view import Side, ViewKind
from gpufleet.readers.exporter.fetch import MAX_PAGE_BYTES, Answer
from gpufleet.readers.exporter.trust import MAX_DEVICES, MAX_VALUES, count, nameable, whole

SHOWN_NAMES = 5
"""Names of machines or dialects that words of an error give."""


def choose(page: Page, where: str) -> Dialect:
    """Return the dialect in which a page that nobody declared is read.

    A page of gpufleet is read under its own names, whatever others it speaks beside them: they say the same. Of any
    other page with devices in two dialects nobody can tell which is to be believed.

    Raises:
        ReaderError: if it tells of devices in none that is known, or in several.
    """
    known = spoken(series.name for series in page.series)
    if NATIVE in known:
        return NATIVE
    if len(known) == 1:
        return known[0]
    if not known:
        names = ", ".join(dialect.name for dialect in DIALECTS)
        raise ReaderError(Reason.NO_DATA, f"{where}: it tells of nothing under the names of {names}")
    names = " and ".join(dialect.name for dialect in known)
    words = f"{where}: it speaks {names}, and would be taken in twice: set `dialect` of this target to one of them"
    raise ReaderError(Reason.READER_FAILED, words)


class Told(msgspec.Struct, frozen=True):
    """What a page says.

    Attributes:
        dialect: in which it was read.
        samples: of its machine.
        drift: names under the dialect's prefix that its table lacks, to how many series have them.
        labels: those that its table lacks, to how many series have them that were not seen before.
    """

    dialect: Dialect
    samples: list[Sample]
    drift: Mapping[str, int]
    labels: Mapping[str, int]


def samples_of(page: Page, dialect: Dialect, at: int, *, reader: str, where: str, side: Side | None = None) -> Told:
    """Return what a page says in one dialect; other names on it are left alone.

    Whose machine it is, is not the page's to say: a name in its labels is not believed. A page that speaks of several
    machines is not one machine's. What an agent says of its guests is theirs, and left out.

    Args:
        page: what was fetched.
        dialect: how it is read.
        at: nanoseconds since 1970 when it came, for what does not say when it was measured.
        reader: name of the reader.
        where: its address, for words of errors.
        side: from where its GPUs are seen, where the caller knows better than the page (inside of a guest).

    Raises:
        ReaderError: if it says nothing in this dialect, speaks of several machines, or of too many devices.
    """
    found = read(dialect, page.series, page.values, page.times, at, reader=reader)
    own = {name: told for name, told in found.machines.items() if name not in found.guests}
    names = sorted(name for name in own if name)
    if len(names) > 1:
        shown = ", ".join(repr(name[:64]) for name in names[:SHOWN_NAMES])
        words = f"{where}: it speaks of {len(names)} machines ({shown}): a target is one machine's exporter"
        raise ReaderError(Reason.READER_FAILED, words)
    samples = whole(nameable(sample for told in own.values() for sample in told), at)
    if not samples:
        raise ReaderError(Reason.NO_DATA, f"{where}: it says nothing under the names of {dialect.name}")
    devices, values = count(samples)
    if devices > MAX_DEVICES or values > MAX_VALUES:
        words = f"{where}: {devices} devices with {values} values are more than one machine has"
        raise ReaderError(Reason.READER_FAILED, f"{words} ({MAX_DEVICES}, {MAX_VALUES})")
    drift = Counter(one.name for one in page.series if one.name in found.unknown and dialect.is_mine(one.name))
    return Told(dialect, samples if side is None else _seen_from(samples, side), drift, found.labels)


def _seen_from(samples: Sequence[Sample], side: Side) -> list[Sample]:
    return [
        sample
        if sample.view is None or sample.view.kind is ViewKind.VGPU
        else msgspec.structs.replace(sample, view=msgspec.structs.replace(sample.view, side=side))
        for sample in samples
    ]


LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=100_000, families=5_000, kept=100_000)
"""A page of a machine with 16 GPUs and 256 vGPU instances has about 20,000 series."""


class PageParser:
    """Parses the pages of one exporter; what it learned of one page makes the next one cheap."""

    def __init__(self) -> None:
        self._parsers = {openmetrics: TextParser(LIMITS, openmetrics=openmetrics) for openmetrics in (False, True)}

    def parse(self, answer: Answer) -> Page:
        """Read a page; a line that cannot be read costs itself.

        Raises:
            WireError: if nothing of it can be read, it is cut short, or it passes a bound.
        """
        page = self._parsers[answer.openmetrics].parse(answer.body)
        error = wire_error_of(page)
        if error is not None:
            raise error
        if not page.complete:
            raise WireError("page", "it is cut short: it does not end with # EOF")
        return page
