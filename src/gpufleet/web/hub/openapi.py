"""OpenAPI document: security scheme, error responses, list formats, and the schemas of msgspec."""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from gpufleet import __version__
from gpufleet.fleet.contract.report import ConformanceReport
from gpufleet.model.access import AuditRecord
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import (
    AllocationAnswer,
    ErrorAnswer,
    EventsAnswer,
    GpuRecord,
    MachineRecord,
    MachineSeriesAnswer,
    NodeRecord,
    ProcessesAnswer,
    SeriesAnswer,
)
from gpufleet.model.api.findings import (
    AcknowledgementSpec,
    FindingDetail,
    FindingPage,
    FindingRecord,
    SilenceRecord,
    SilenceSpec,
)
from gpufleet.model.api.holders import HolderPage
from gpufleet.model.api.inventory import GpuChangePage, GpuPool
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.api.sql import SqlAnswer, SqlRequest, SqlViewRecord
from gpufleet.model.api.usage import UsageAnswer
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.web.hub.formats import FORMATS, JSON, LISTS

_DESCRIPTIONS: Mapping[int, str] = {
    400: "Invalid request; `field` names the parameter.",
    401: "The hub requires a token, and it is missing or invalid.",
    403: "The token's role does not permit the request.",
    404: "Not found, or not visible to the tenant.",
    409: "Conflict with existing data, or an ambiguous name; `candidates` are the matching ids.",
    413: "The body is too large.",
    429: "Too many streams are open.",
    503: "Registry or store do not respond, or the write could not be recorded in the audit log.",
}

_ALWAYS = (400, 401, 403, 503)

TOKEN_SCHEME = "token"  # noqa: S105 - the name of the scheme
"""Name of the security scheme."""


def errors(*more: int) -> dict[int, ResponseSpec]:
    """Describe the errors of a route: the common ones and `more`."""
    return {
        status: ResponseSpec(ErrorAnswer, generate_examples=False, description=_DESCRIPTIONS[status])
        for status in sorted({*_ALWAYS, *more})
    }


def describe(record: type, description: str, *more: int) -> dict[int, ResponseSpec]:
    """Describe a PUT route: its response for a new `record`, and its errors."""
    return {201: ResponseSpec(record, generate_examples=False, description=description), **errors(413, *more)}


_LISTS = {kind.__name__ for kind in LISTS} | {SqlAnswer.__name__}

_TYPES = (
    AcknowledgementSpec,
    Allocation,
    AllocationAnswer,
    AllocationSpec,
    AuditRecord,
    ClusterRecord,
    ClusterSpec,
    ConformanceReport,
    ErrorAnswer,
    EventsAnswer,
    FindingDetail,
    FindingPage,
    FindingRecord,
    GpuChangePage,
    GpuPool,
    GpuRecord,
    HolderPage,
    MachineRecord,
    MachineSeriesAnswer,
    NodeRecord,
    ProcessesAnswer,
    SenderRecord,
    SeriesAnswer,
    SilenceRecord,
    SilenceSpec,
    SqlAnswer,
    SqlRequest,
    SqlViewRecord,
    UsageAnswer,
)
"""Types of requests and answers; nested types are included."""


_FORMAT = {
    "name": "format",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "enum": list(FORMATS)},
    "description": "Format of the list; overrides `Accept`.",
}
_TAG = {
    "schema": {"type": "string"},
    "description": "Entity tag for `If-None-Match`, which returns 304 while the answer is unchanged.",
}
_LINK = {"schema": {"type": "string"}, "description": "URL of the next page, with rel=next; absent on the last page."}


def _add_formats(paths: dict[str, Any]) -> None:
    """Add entity tags to each GET, and formats and `Link` to each list."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            answer = operation["responses"].get("200")
            if answer is None or path.startswith(("/healthz", "/readyz", "/metrics")):
                continue
            schema = answer["content"].get("application/json", {}).get("schema")
            if schema is None:
                continue
            if method == "get":
                answer["headers"] = {"ETag": _TAG}
                operation["responses"]["304"] = {"description": "Unchanged since the entity tag in `If-None-Match`."}
            if schema.get("type") == "array" or schema.get("$ref", "").rpartition("/")[2] in _LISTS:
                if method == "get":
                    answer["headers"]["Link"] = _LINK
                answer["content"].update({kind: {"schema": {}} for kind in FORMATS.values() if kind != JSON})
                operation["parameters"] = [*operation.get("parameters", ()), _FORMAT]


def with_msgspec_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """Return the framework's document with the schemas of msgspec, which encodes and decodes the records.

    The framework's own schemas describe integers ambiguously, and lack bounds.
    """
    paths = copy.deepcopy(document["paths"])  # the framework caches its document
    _add_formats(paths)
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    return {**document, "paths": paths, "components": {**document["components"], "schemas": schemas}}


class _JsonPlugin(JsonRenderPlugin):
    """OpenAPI document as JSON."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return the JSON document."""
        return super().render(request, with_msgspec_schemas(openapi_schema))


CONFIG = OpenAPIConfig(
    title="gpufleet",
    version=__version__,
    description="GPU telemetry: allocations, clusters, machines, GPUs, senders. "
    "Batches are posted to /v1/batches in a binary format, which is documented separately.",
    path="/openapi",
    components=Components(security_schemes={TOKEN_SCHEME: SecurityScheme(type="http", scheme="bearer")}),
    security=[{TOKEN_SCHEME: []}],
    render_plugins=(_JsonPlugin(),),  # the others load code from third parties into the browser
)
"""OpenAPI configuration of the API."""
