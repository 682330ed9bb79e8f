"""The way to the hub, when there is one."""

from gpufleet.agent.outbox import Outbox
from gpufleet.agent.push import Pusher


class Delivery:
    """Both ends of the queue."""

    def __init__(self, outbox: Outbox, pusher: Pusher) -> None:
        """Take what fills the queue and what empties it."""
        self.outbox = outbox
        self.pusher = pusher

    @property
    def capability(self) -> str:
        """`available`, or why pushing does not work."""
        error = self.outbox.stats.last_error
        return f"failing: {error}" if error else "available"
