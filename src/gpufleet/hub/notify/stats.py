"""Counters of a receiver of findings."""

import msgspec


class ReceiverStats(msgspec.Struct):
    """Counters of a receiver since the hub started.

    Attributes:
        name: name of the receiver.
        sent: accepted notices or alerts; for the store, written transitions.
        failures: failed attempts, which are retried.
        dead: dead letters: notices or alerts that the receiver rejected, or that were given up.
        position: number of a transition. It and all earlier ones are delivered, left out or dead letters.
        newest: number of the newest transition in the registry.
        last_success: nanoseconds since 1970 of the newest accepted request, or None.
        last_error: reason of the newest failure; empty after a success.
    """

    name: str
    sent: int = 0
    failures: int = 0
    dead: int = 0
    position: int = 0
    newest: int = 0
    last_success: int | None = None
    last_error: str = ""

    @property
    def lag(self) -> int:
        """Return the number of pending transitions in memory and in the registry.

        It is slightly higher if the registry skipped numbers, or if later transitions are delivered already.
        """
        return max(0, self.newest - self.position)
