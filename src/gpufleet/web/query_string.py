"""Query strings of requests.

Unknown and repeated parameters are rejected: an ignored filter would return everything.
"""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from gpufleet.model.errors import GpufleetError

MAX_NAME = 100
"""Characters of a rejected name that are reported."""


class ParameterError(GpufleetError):
    """Unknown or repeated parameter.

    Attributes:
        field: its name.
        reason: what is wrong.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


def parse_query_string(query: bytes, path: str, repeatable: Mapping[str, bool]) -> dict[str, list[str]]:
    """Return the values of each parameter.

    Args:
        query: query string of a request; the server limits its size.
        path: the request's path.
        repeatable: the path's parameters, and whether each may be repeated.

    Raises:
        ParameterError: if a parameter is unknown, or is repeated and may not be.
    """
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in repeatable:
            known = ", ".join(sorted(repeatable)) or "no parameters"
            raise ParameterError(name[:MAX_NAME], f"unknown parameter: {path} takes {known}")
        if name in found and not repeatable[name]:
            raise ParameterError(name, "must be given only once")
        found.setdefault(name, []).append(value)
    return found
