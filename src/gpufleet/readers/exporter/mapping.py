"""Mapping of an exporter's page to the samples of one machine: parsing, choice of dialect, limits."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from gpufleet.codecs.prometheus_text.page import TextLimits, TextPage
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.reading import read_series
from gpufleet.dialects.registry import DIALECTS, believed, device_dialects
from gpufleet.fleet.board import drop_board_defaults
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ReaderError, WireError
from gpufleet.model.reading import Sample
from gpufleet.model.view import Side, ViewKind
from gpufleet.readers.exporter.fetch import MAX_PAGE_BYTES, ScrapedPage
from gpufleet.readers.exporter.trust import MAX_DEVICES, MAX_VALUES, bound_samples, drop_invalid_names, merge_samples

MAX_NAMES_IN_MESSAGE = 5
"""Maximum number of machine names in an error message."""


def detect_dialect(page: TextPage, where: str) -> Dialect:
    """Return the dialect of a page without a declared dialect.

    A page of gpufleet is read by its own names; other dialects on it repeat the same values. Any other page with
    devices in two dialects is ambiguous.

    Raises:
        ReaderError: if the page has devices in no known dialect, or in several.
    """
    known = device_dialects(series.name for series in page.series)
    if NATIVE in known:
        return NATIVE
    if len(known) == 1:
        return known[0]
    if not known:
        names = ", ".join(dialect.name for dialect in DIALECTS)
        raise ReaderError(Reason.NO_DATA, f"{where}: no metrics of a known dialect ({names})")
    names = " and ".join(dialect.name for dialect in known)
    message = f"{where}: metrics of several dialects ({names}): set `dialect` of this target to one of them"
    raise ReaderError(Reason.READER_FAILED, message)


class PageSamples(msgspec.Struct, frozen=True):
    """Samples of a page.

    Attributes:
        dialect: dialect of the page.
        samples: of its machine.
        drift: metric names with the dialect's prefix that its table lacks, with the number of series.
        labels: labels that its table lacks, with the number of series not seen before.
        devices: view keys of its devices.
        problem: description of devices beyond the maximum of one machine, or empty.
    """

    dialect: Dialect
    samples: list[Sample]
    drift: Mapping[str, int]
    labels: Mapping[str, int]
    devices: frozenset[str] = frozenset()
    problem: str = ""


def samples_of(
    page: TextPage,
    dialect: Dialect,
    at: int,
    *,
    reader: str,
    where: str,
    side: Side | None = None,
    known: Collection[str] = (),
) -> PageSamples:
    """Return the samples of a page in one dialect; other names are ignored.

    The identity of the machine is never taken from the page: host names in its labels are ignored. A page with several
    machines is rejected. An agent's readings of its guests are left out. Devices beyond the maximum of one machine are
    left out and counted, and known devices take precedence.

    Args:
        page: parsed page.
        dialect: dialect of the page.
        at: arrival time in nanoseconds since 1970, for values without a time of measurement.
        reader: name of the reader.
        where: address of the page, for error messages.
        side: side of the GPU views, if the caller knows it better than the page (inside a guest).
        known: view keys of the devices of the previous page.

    Raises:
        ReaderError: if the page has no metrics of this dialect, several machines, or no device within the maximum.
    """
    read_as = believed(dialect, page.series)
    found = read_series(read_as, page.series, page.values, page.times, at, reader=reader)
    names = sorted(filter(None, found.machines))
    if len(names) > 1:
        shown = ", ".join(repr(name[:64]) for name in names[:MAX_NAMES_IN_MESSAGE])
        message = f"{where}: the page has {len(names)} machines ({shown}): a target must be one machine's exporter"
        raise ReaderError(Reason.READER_FAILED, message)
    samples = merge_samples(
        drop_invalid_names(sample for samples_of_machine in found.machines.values() for sample in samples_of_machine),
        at,
    )
    if not samples:
        raise ReaderError(Reason.NO_DATA, f"{where}: no metrics of the dialect {dialect.name}")
    samples = drop_board_defaults(samples, lists_modes=dialect.lists_ecc_modes)
    bounded = bound_samples(samples, known)
    problem = ""
    if bounded.left_out or bounded.left_out_values:
        over = [f"{bounded.left_out} devices"] if bounded.left_out else []
        over += [f"{bounded.left_out_values} values of the machine"] if bounded.left_out_values else []
        maximum = f"the maximum of one machine ({MAX_DEVICES} devices, {MAX_VALUES} values)"
        problem = f"{where}: {' and '.join(over)} were left out: the page exceeds {maximum}"
    if not bounded.samples:
        raise ReaderError(Reason.READER_FAILED, problem)
    names_of_series = (series.name for series in page.series)
    drift = Counter(name for name in names_of_series if name in found.unknown and dialect.is_mine(name))
    return PageSamples(
        dialect,
        bounded.samples if side is None else _seen_from(bounded.samples, side),
        drift,
        found.labels,
        bounded.devices,
        problem,
    )


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
    """Parser of one exporter's pages; caches parsed series, which makes further pages cheap."""

    def __init__(self) -> None:
        self._parsers = {openmetrics: TextParser(LIMITS, openmetrics=openmetrics) for openmetrics in (False, True)}

    def parse(self, scraped: ScrapedPage) -> TextPage:
        """Parse a page; an unreadable line is skipped.

        Raises:
            WireError: if nothing can be read, the page is truncated, or a limit is exceeded.
        """
        page = self._parsers[scraped.openmetrics].parse(scraped.body)
        error = wire_error_of(page)
        if error is not None:
            raise error
        if not page.complete:
            raise WireError("page", "the page is truncated: # EOF is missing")
        return page
