"""kube-state-metrics' own page, asked where no Prometheus of its cluster writes here."""

import re

from gpufleet.codecs.prometheus_text.limits import TextLimits
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.dialects.kube_state_metrics import HAS, KUBE_STATE_METRICS, is_of_gpus
from gpufleet.hub.imported.series import read_request
from gpufleet.hub.imported.written import Written
from gpufleet.hub.pulled.cluster_page import MAX_PAGE_BYTES
from gpufleet.model.errors import WireError
from gpufleet.model.series import Series
from gpufleet.ports import Clock

READER = "scrape"
"""How its readers and its sender begin; the dialect follows, or the name of the target."""

LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=100_000, kept=100_000)

_OURS = re.compile(f"^(?:{'|'.join(KUBE_STATE_METRICS.prefixes)})[^\n]*".encode(), re.MULTILINE)
"""The lines that say something here: most of a page is of pods."""


class KubernetesPage:
    """Reads the pages of one kube-state-metrics.

    What they say is of the instant at which they came. A series that is not on the page any more has ended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parser = TextParser(LIMITS)
        self._before: frozenset[Series] = frozenset()
        self._newest: frozenset[Series] = frozenset()

    def __call__(self, body: bytes) -> Written:
        """Read a page. One that cannot be read leaves nothing in the next one's cache. Raises WireError."""
        parser, self._parser = self._parser, TextParser(LIMITS)
        lines = _OURS.findall(body)
        if not lines:
            raise WireError("page", f"no {HAS}: is it kube-state-metrics', with nodes among its --resources?")
        page = parser.parse(b"\n".join(lines) + b"\n")
        error = wire_error_of(page)
        if error is not None:
            raise error
        self._parser = parser
        numbers = [number for number, one in enumerate(page.series) if is_of_gpus(one)]
        now = frozenset(page.series[number] for number in numbers)
        ended = list(self._before - now)
        self._newest = now
        at = self._clock.now_ns()
        series = [*(page.series[number] for number in numbers), *ended]
        request = WriteRequest(
            series=series,
            values=[*(float(page.values[number]) for number in numbers), *(0.0 for _ in ended)],
            times=[at] * len(series),
            stale=list(range(len(numbers), len(series))),
            types={},
            problems={str(problem): count for problem, count in page.problems.items()},
        )
        return read_request(request, READER)

    def taken(self) -> None:
        """Note that what the newest page says is durable: what has ended need not be said again."""
        self._before = self._newest
