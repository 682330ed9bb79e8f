"""Configuration of one exporter that is scraped."""

from typing import Annotated, Literal

import msgspec

from gpufleet.config.hub_url import check_page_url
from gpufleet.config.load import ImpossibleValueError

Timeout = Annotated[float, msgspec.Meta(ge=0.1, le=600)]


class ExporterTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exporter. What it tells is told of one machine, whatever names it writes.

    Attributes:
        name: what its reader is called: `exporter/NAME`.
        url: of its page, such as `http://127.0.0.1:9400/metrics`.
        address: instead of `url`, a stream to it, such as `unix:///run/exporter.sock` or `vsock://5:9400`.
        path: of the page at `address`.
        dialect: whose names it writes; `auto` takes the only dialect that its first page has.
        token_file: file with a token to present, such as `/etc/gpufleet/exporter.token`; read again when it changes.
        ca: PEM file of the authorities that vouch for it, such as `/etc/gpufleet/ca.crt`; None means the system's.
        insecure: present the token over plain HTTP beyond loopback.
        timeout_seconds: a page that takes longer is given up.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
    url: str | None = None
    address: str | None = None
    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]{0,1023}$")] = "/metrics"
    dialect: Literal["auto", "native", "dcgm", "all-smi", "nvidia-gpu-exporter"] = "auto"
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False
    timeout_seconds: Timeout = 5.0

    def __post_init__(self) -> None:
        """Refuse what names no page, and to show the token to whoever listens on the way."""
        if (self.url is None) == (self.address is None):
            raise ImpossibleValueError("url", "give either url or address, and not both")
        if self.url is not None:
            check_page_url("url", self.url, shows_token=bool(self.token_file) and not self.insecure)
