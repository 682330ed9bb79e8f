"""ASGI application of the cluster collector: its metrics, its state, and its copies as JSON."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from gpufleet.exporters.exposition import PageFormat
from gpufleet.model.collector import CollectorSnapshot
from gpufleet.web.agent.negotiation import choose_syntax
from gpufleet.web.operator_app import JSON, TEXT, OperatorApp, OperatorResponse, Scope, alive, header_of, readiness

INDEX = b"""gpufleet cluster-agent

/metrics      Prometheus text, or OpenMetrics if requested by Accept
/v1/snapshot  copies of the Kubernetes objects as JSON
/healthz      200 while the process runs
/readyz       200 once the API server has answered for every resource
"""


class ServedCollector(Protocol):
    """Content of the application."""

    def snapshot(self) -> CollectorSnapshot:
        """Return the copies with their objects."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the resources without a first answer."""
        ...


class ClusterApp(OperatorApp):
    """Endpoints of the collector. See `OperatorApp` for `token`."""

    def __init__(
        self, served: ServedCollector, page: Callable[[PageFormat], bytes], token: Callable[[], str] | None = None
    ) -> None:
        """Take the collector and the function that renders its metrics page."""
        self._served = served
        self._page = page
        routes = {
            "/": self._index,
            "/metrics": self._metrics,
            "/healthz": alive,
            "/readyz": self._ready,
            "/v1/snapshot": self._snapshot,
        }
        super().__init__("cluster-agent", routes, token)

    async def _index(self, _: Scope) -> OperatorResponse:
        return OperatorResponse(200, TEXT, INDEX)

    async def _ready(self, _: Scope) -> OperatorResponse:
        return readiness(self._served.missing)

    async def _metrics(self, scope: Scope) -> OperatorResponse:
        choice = choose_syntax(header_of(scope, b"accept"))
        return OperatorResponse(200, choice.content_type.encode(), self._page(choice.syntax), [(b"vary", b"Accept")])

    async def _snapshot(self, _: Scope) -> OperatorResponse:
        return OperatorResponse(200, JSON, msgspec.json.encode(self._served.snapshot()))
