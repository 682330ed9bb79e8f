"""How it stands with everything that this hub asks by itself."""

from collections.abc import Iterator

import msgspec

Who = tuple[str, str]
"""Cluster and sender."""


class Standing(msgspec.Struct):
    """One target since the hub started.

    Attributes:
        where: its address.
        up: whether it answered when it was asked last; None before that.
        answers, failures: passes that brought something, and that did not.
        lost: passes that brought something which could not be taken in.
        error: words of the newest failure; empty after an answer.
    """

    where: str
    up: bool | None = None
    answers: int = 0
    failures: int = 0
    lost: int = 0
    error: str = ""

    def answered(self) -> None:
        """Note that it answered."""
        self.up, self.error = True, ""
        self.answers += 1

    def failed(self, words: str) -> bool:
        """Note why it did not; return whether that is new."""
        is_new = self.error != words
        self.up, self.error = False, words
        self.failures += 1
        return is_new


class Standings:
    """All of them; and of lists of targets, what of them is not as it is written. Lives on the event loop."""

    def __init__(self) -> None:
        self._targets: dict[Who, Standing] = {}
        self.files_refused = 0
        self.targets_refused = 0

    def open(self, cluster: str, sender: str, where: str) -> Standing:
        """Begin with a target."""
        found = self._targets[cluster, sender] = Standing(where)
        return found

    def close(self, cluster: str, sender: str) -> None:
        """Forget one that is asked no more."""
        self._targets.pop((cluster, sender), None)

    def __iter__(self) -> Iterator[tuple[Who, Standing]]:
        """Go through them, by cluster and name."""
        return iter(sorted(self._targets.items(), key=lambda one: one[0]))
