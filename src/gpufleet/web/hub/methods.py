"""Which methods a path has (RFC 9110): HEAD is answered as GET is, without the body; OPTIONS and 405 name them all."""

from collections.abc import Iterable

from gpufleet.model.answer import ErrorAnswer
from gpufleet.web.hub.respond import Scope, Send, respond

ORDER = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


class Methods:
    """The methods of every path."""

    def __init__(self, routes: Iterable[tuple[str, str]]) -> None:
        """Take methods and paths; a part of a path in braces stands for any text."""
        found: dict[str, set[str]] = {}
        for method, path in routes:
            found.setdefault(path, {"OPTIONS"}).update({method, "HEAD"} if method == "GET" else {method})
        self._paths = {path: tuple(sorted(methods, key=ORDER.index)) for path, methods in found.items()}
        self._patterns = [(path.split("/"), methods) for path, methods in self._paths.items() if "{" in path]

    def of(self, path: str) -> tuple[str, ...]:
        """Return the methods of a path; none where there is nothing."""
        known = self._paths.get(path)
        if known is not None:
            return known
        parts = path.split("/")
        for pattern, methods in self._patterns:
            if len(pattern) == len(parts) and all(map(_matches, pattern, parts)):
                return methods
        return ()

    async def answered(self, scope: Scope, send: Send) -> bool:
        """Answer what is asked by OPTIONS, or by a method that the path has not; return whether it was so."""
        methods = self.of(scope["path"])
        if not methods or (scope["method"] in methods and scope["method"] != "OPTIONS"):
            return False
        allow = (b"allow", ", ".join(methods).encode())
        if scope["method"] == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": [allow]})
            await send({"type": "http.response.body", "body": b""})
        else:
            words = f"{scope['path']} is asked by {' or '.join(methods)}"
            await respond(send, 405, ErrorAnswer(error="method_not_allowed", detail=words), [allow])
        return True


def as_get(scope: Scope) -> Scope:
    """Return a request by HEAD as the GET that it is answered as; the server leaves the body out of the answer."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _matches(pattern: str, part: str) -> bool:
    return pattern == part or (pattern.startswith("{") and bool(part))
