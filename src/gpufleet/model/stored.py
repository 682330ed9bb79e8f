"""What goes into the store and what comes out of it."""

import msgspec

from gpufleet.model.reading import Sample
from gpufleet.model.wire import WireBatch


class Accepted(msgspec.Struct, kw_only=True):
    """A batch that was authenticated, acknowledged and normalised: values checked, machines known.

    Attributes:
        received_at: nanoseconds since 1970 by the hub's clock when its body was complete.
        reported_at: its place in the order of reports of one sender, by the hub's clock: about `received_at`, and for
            backlog earlier than everything that its sender said later. Of two reports the later one stands.
        machine_ids: the hub's id of each of `batch.machines`, in that order.
        batch: the columns; every value valid for its catalogue row or absent.
    """

    received_at: int
    reported_at: int
    machine_ids: tuple[str, ...]
    batch: WireBatch


class StoredSample(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sample of one view, reader and lane, as the store kept it.

    Attributes:
        sample: with info texts among its values and its dimensions.
        received_at: nanoseconds since 1970 by the hub's clock.
    """

    sample: Sample
    received_at: int
