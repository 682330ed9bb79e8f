"""Status of the targets that the hub pulls."""

from collections.abc import Iterator

import msgspec

TargetKey = tuple[str, str]
"""Cluster and sender."""


class TargetStatus(msgspec.Struct):
    """Status of one target since the hub started.

    Attributes:
        address: of the target.
        up: whether the newest pull succeeded; None before the first.
        answers, failures: successful and failed pulls.
        lost: successful pulls whose data could not be ingested.
        error: message of the newest failure; empty after a success.
    """

    address: str
    up: bool | None = None
    answers: int = 0
    failures: int = 0
    lost: int = 0
    error: str = ""

    def record_success(self) -> None:
        """Record a successful pull."""
        self.up, self.error = True, ""
        self.answers += 1

    def record_failure(self, detail: str) -> bool:
        """Record a failed pull; return whether the error differs from the previous one."""
        is_new = self.error != detail
        self.up, self.error = False, detail
        self.failures += 1
        return is_new


class TargetStatuses:
    """Status of all targets. Use it from the event loop.

    Attributes:
        files_refused: target files that cannot be read.
        targets_refused: targets in those files that are left out.
    """

    def __init__(self) -> None:
        self._targets: dict[TargetKey, TargetStatus] = {}
        self.files_refused = 0
        self.targets_refused = 0

    def open(self, cluster: str, sender: str, address: str) -> TargetStatus:
        """Add a target and return its status."""
        status = self._targets[cluster, sender] = TargetStatus(address)
        return status

    def close(self, cluster: str, sender: str) -> None:
        """Remove a target."""
        self._targets.pop((cluster, sender), None)

    def __iter__(self) -> Iterator[tuple[TargetKey, TargetStatus]]:
        """Iterate over the targets, sorted by cluster and sender."""
        return iter(sorted(self._targets.items(), key=lambda one: one[0]))
