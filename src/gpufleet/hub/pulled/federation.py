"""A cluster's Prometheus, asked for the newest samples that it has."""

from collections.abc import Sequence
from urllib.parse import quote

from gpufleet.codecs.prometheus_text.limits import TextLimits
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.dialects.known import DIALECTS
from gpufleet.dialects.kube_state_metrics import SELECTORS
from gpufleet.hub.imported.page import as_request
from gpufleet.hub.imported.series import read_request
from gpufleet.hub.imported.written import Written
from gpufleet.hub.pulled.cluster_page import MAX_PAGE_BYTES

READER = "federate"
"""How its readers and its sender begin; the dialect follows, or the name of the Prometheus."""

LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=300_000, kept=300_000)


class Federated:
    """Reads the pages of one Prometheus. Its samples keep the instants that it says."""

    def __init__(self, *, plain_pods: bool = False) -> None:
        """Prepare it; `plain_pods` says that its labels `pod` and `namespace` are those of workloads."""
        self._plain_pods = plain_pods
        self._parser = TextParser(LIMITS)

    def __call__(self, body: bytes) -> Written:
        """Read a page. One that cannot be read leaves nothing in the next one's cache. Raises WireError."""
        parser, self._parser = self._parser, TextParser(LIMITS)
        page = parser.parse(body)
        error = wire_error_of(page)
        if error is not None:
            raise error
        self._parser = parser
        return read_request(as_request(page), READER, plain_pods=self._plain_pods)


def federate_url(root: str, match: Sequence[str]) -> str:
    """Return the address of a page; without `match` of every name of a project, and of Kubernetes, that is known."""
    asked = match or (known_names(), *SELECTORS)
    return f"{root.rstrip('/')}/federate?" + "&".join(f"match%5B%5D={quote(one, safe='')}" for one in asked)


def known_names() -> str:
    """Return a selector of every name that a dialect has."""
    names = "|".join(f"{prefix}.*" for dialect in DIALECTS for prefix in dialect.prefixes)
    return f'{{__name__=~"{names}"}}'
