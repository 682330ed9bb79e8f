"""A page, within the bounds of one machine's."""

from gpufleet.codecs.prometheus_text.limits import TextLimits
from gpufleet.codecs.prometheus_text.page import Page
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.model.errors import WireError
from gpufleet.readers.exporter.fetch import MAX_PAGE_BYTES, Answer

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
