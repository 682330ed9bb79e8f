"""Relays that post to one another in a circle.

Each would take what comes back for a repetition, as it holds it, and so would the one before: all would forget it.
"""

import re

from gpufleet.web.hub.respond import Scope, header

RELAYS_KEPT = 64
"""Relays before this one that are remembered."""

_HEADER = b"gpufleet-relay"
_NAME = re.compile(r"[0-9a-f]{32}")


class Circle:
    """What one relay knows of those before it, since it started."""

    def __init__(self, name: str) -> None:
        """Take the relay's own name: the epoch of its log."""
        self._name = name
        self._before: set[str] = set()

    def names(self) -> str:
        """Return the header by which the next hub can tell that it is in a circle."""
        return ",".join((self._name, *sorted(self._before)))

    def closes(self, scope: Scope) -> bool:
        """Remember who posts, and tell whether that came from this relay itself."""
        named = {name for value in header(scope, _HEADER) for name in _NAME.findall(value)}
        if self._name in named:
            return True
        if len(self._before | named) <= RELAYS_KEPT:
            self._before |= named
        return False
