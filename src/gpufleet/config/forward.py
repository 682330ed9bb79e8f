"""Configuration of the hub's way to a time-series database."""

from typing import Annotated, Literal

import msgspec

from gpufleet.config.push import LABEL, Pairs, Receiver, parse_pairs

DiskBytes = Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 44)]


class ForwardConfig(Receiver, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A database that gets every number the hub takes in, as Prometheus remote write, at the time of its measurement.

    Attributes:
        url: all of the receiver's address, such as `http://127.0.0.1:8428/api/v1/write`; None means that nothing is
            passed on.
        version: of remote write; `2.0` falls back where the receiver does not speak it.
        late: what becomes of values that are older than what was passed on of the same readings already (backlog of an
            outage): `drop` for a Prometheus, which refuses them, `send` for a receiver that takes them.
        labels: added to every series, each `name=value`.
        queue_bytes: of requests that wait, on disk; beyond it the oldest go and are counted.
    """

    url: str | None = None
    version: Literal["1.0", "2.0"] = "1.0"
    late: Literal["drop", "send"] = "drop"
    labels: Pairs = ()
    queue_bytes: DiskBytes = 1 << 30

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        super().__post_init__()
        if self.url is not None:
            self.check_url("url", self.url)
        parse_pairs("labels", self.labels, LABEL)

    @property
    def more_labels(self) -> dict[str, str]:
        """The pairs of `labels`."""
        return parse_pairs("labels", self.labels, LABEL)
