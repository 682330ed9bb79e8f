"""What a query string may say: what its route takes, and once where one is meant.

A filter that nothing heeds would be answered with everything, as if all of it fitted.
"""

from typing import Any
from urllib.parse import parse_qsl

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter

from gpufleet.hub.history import QuestionError

FORMAT = "format"
"""Every route takes it."""


def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse a query string of which a part would not be heeded.

    Raises:
        QuestionError: naming the parameter.
    """
    query = connection.scope["query_string"].decode("latin-1")
    if not query or not connection.scope["path"].startswith("/v1/"):
        return
    taken = {FORMAT: False, **_parameters(handler)}
    met: set[str] = set()
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in taken:
            words = f"there is no such parameter: {connection.url.path} takes {', '.join(sorted(taken))}"
            raise QuestionError(name[:100], words)
        if name in met and not taken[name]:
            raise QuestionError(name, "is given more than once, and one is meant")
        met.add(name)


def _parameters(handler: BaseRouteHandler) -> dict[str, bool]:
    """Return the query parameters of a route, and whether each can be repeated."""
    return {
        said.name or name: field.is_non_string_sequence
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(said := field.kwarg_definition, QueryParameter)
    }
