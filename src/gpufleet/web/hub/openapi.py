"""What the API says of itself beside what its types say: who may ask, and every error as it is answered."""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from gpufleet import __version__
from gpufleet.model.access import AuditRecord
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import (
    AllocationAnswer,
    ErrorAnswer,
    EventsAnswer,
    GpuRecord,
    MachineRecord,
    NodeRecord,
    ProcessesAnswer,
    SenderRecord,
    SeriesAnswer,
)
from gpufleet.model.api.inventory import GpuChangePage, GpuPool
from gpufleet.model.api.sql import SqlAnswer, SqlQuestion, SqlViewRecord
from gpufleet.model.api.usage import UsageAnswer
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.web.hub.formats import FORMATS, JSON, LISTS

_WORDS: Mapping[int, str] = {
    400: "The question cannot be meant: `field` names where.",
    401: "No token that is taken, where the hub asks for one.",
    403: "The token's role does not cover it.",
    404: "There is none, or it is not the tenant's.",
    409: "It contradicts what is known, or more than one is meant: `candidates` are their ids.",
    413: "The body is too large.",
    503: "Registry or store do not answer, or the write could not be recorded.",
}

_ALWAYS = (400, 401, 403, 503)

TOKEN = "token"  # noqa: S105 - the name of the scheme
"""What a token is called in the description."""


def errors(*more: int) -> dict[int, ResponseSpec]:
    """Describe the errors of a route: those of every one, and some more."""
    return {
        status: ResponseSpec(ErrorAnswer, generate_examples=False, description=_WORDS[status])
        for status in sorted({*_ALWAYS, *more})
    }


def describe(kept: type, words: str, *more: int) -> dict[int, ResponseSpec]:
    """Describe a route that keeps what is put: what it answers when that is new, and its errors."""
    return {201: ResponseSpec(kept, generate_examples=False, description=words), **errors(413, *more)}


_LISTS = {kind.__name__ for kind in LISTS} | {SqlAnswer.__name__}

_TYPES = (
    Allocation,
    AllocationAnswer,
    AllocationSpec,
    AuditRecord,
    ClusterRecord,
    ClusterSpec,
    ErrorAnswer,
    EventsAnswer,
    GpuChangePage,
    GpuPool,
    GpuRecord,
    MachineRecord,
    NodeRecord,
    ProcessesAnswer,
    SenderRecord,
    SeriesAnswer,
    SqlAnswer,
    SqlQuestion,
    SqlViewRecord,
    UsageAnswer,
)
"""What is asked with and answered; whatever is in them comes along."""


_FORMAT = {
    "name": "format",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "enum": list(FORMATS)},
    "description": "How the list is written; `Accept` says it too.",
}
_TAG = {"schema": {"type": "string"}, "description": "What `If-None-Match` takes: 304 while the answer is the same."}
_LINK = {"schema": {"type": "string"}, "description": "Where the next page is, with rel=next; not on the last."}


def _name_formats(paths: dict[str, Any]) -> None:
    """Say of every GET that it has a version, and of every list that it comes in other formats too."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            answer = operation["responses"].get("200")
            if answer is None or path.startswith(("/healthz", "/readyz", "/metrics")):
                continue
            schema = answer["content"]["application/json"]["schema"]
            if method == "get":
                answer["headers"] = {"ETag": _TAG}
                operation["responses"]["304"] = {"description": "It is the same as `If-None-Match` says."}
            if schema.get("type") == "array" or schema.get("$ref", "").rpartition("/")[2] in _LISTS:
                if method == "get":
                    answer["headers"]["Link"] = _LINK
                answer["content"].update({kind: {"schema": {}} for kind in FORMATS.values() if kind != JSON})
                operation["parameters"] = [*operation.get("parameters", ()), _FORMAT]


def exact(document: dict[str, Any]) -> dict[str, Any]:
    """Return the framework's description with schemas by what in truth encodes and decodes.

    Its own call a number that is whole ambiguous, and lack the bounds.
    """
    paths = copy.deepcopy(document["paths"])  # the framework keeps its own, and shows it to whoever asks next
    _name_formats(paths)
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    return {**document, "paths": paths, "components": {**document["components"], "schemas": schemas}}


class _Json(JsonRenderPlugin):
    """The description as JSON."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return it."""
        return super().render(request, exact(openapi_schema))


CONFIG = OpenAPIConfig(
    title="gpufleet",
    version=__version__,
    description="Truthful GPU telemetry: allocations, clusters, machines, GPUs, senders. "
    "Batches are posted to /v1/batches in a format of their own.",
    path="/openapi",
    components=Components(security_schemes={TOKEN: SecurityScheme(type="http", scheme="bearer")}),
    security=[{TOKEN: []}],
    render_plugins=(_Json(),),  # the others fetch code from elsewhere into the reader's browser
)
"""Of the whole API."""
