"""Readers of exporters, put together from their targets."""

from collections.abc import Callable, Mapping

from gpufleet.channels.stream.address import dialer_of
from gpufleet.config.exporter import ExporterTarget
from gpufleet.config.guests import MetricsChannel
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.model.errors import ConfigError
from gpufleet.model.view import Side
from gpufleet.ports import Clock
from gpufleet.readers.exporter.fetch import Pages, Room, StreamPages, UrlPages
from gpufleet.readers.exporter.reader import ExporterReader
from gpufleet.wiring.sending import token_of, trust_of

GUEST_SECONDS, GUEST_BYTES = 15.0, 4 << 20

DECLARED = {
    "auto": None,
    "native": NATIVE,
    "dcgm": DCGM_EXPORTER,
    "all-smi": ALL_SMI,
    "nvidia-gpu-exporter": NVIDIA_GPU_EXPORTER,
}
"""Dialects by their names in the configuration."""


def exporter_reader(
    target: ExporterTarget,
    clock: Clock,
    key: str,
    *,
    room: Room | None = None,
    drift: Callable[[Mapping[str, int], Mapping[str, int]], None] = lambda *_: None,
) -> ExporterReader:
    """Return the reader of a target, which has not asked anybody anything yet.

    Args:
        target: what is scraped.
        clock: the clocks.
        key: where in the configuration it stands, for words of errors.
        room: bounds pages of all targets that are held at once.
        drift: hears of names and labels that its dialect's table lacks, see `ExporterReader`.

    Raises:
        ConfigError: if a token or authorities cannot be read, or the address is none.
    """
    pages = pages_of(target, key, room)
    return ExporterReader(target.name, pages, clock, dialect=DECLARED[target.dialect], drift=drift)


def guest_exporter(channel: MetricsChannel, clock: Clock) -> ExporterReader:
    """Return the reader of an exporter inside of a guest: what it tells is of that guest, seen from inside.

    Its time is that of the pass, which whoever reads guests bounds.
    """
    pages = StreamPages(
        dialer_of(channel.address),
        where=channel.address,
        path=channel.path,
        timeout_seconds=GUEST_SECONDS,
        max_bytes=GUEST_BYTES,
    )
    return ExporterReader("guest", pages, clock, dialect=DECLARED[channel.dialect], side=Side.GUEST)


def pages_of(target: ExporterTarget, key: str, room: Room | None = None) -> Pages:
    """Return where a target's pages come from; raises as `exporter_reader` does."""
    token = token_of(target.token_file)
    if target.url is not None:
        return UrlPages(
            target.url, timeout_seconds=target.timeout_seconds, token=token, tls=trust_of(target.ca), room=room
        )
    assert target.address is not None
    try:
        dialer = dialer_of(target.address)
    except ValueError as error:
        raise ConfigError("configuration", f"{key}.address", str(error)) from error
    return StreamPages(
        dialer, where=target.address, path=target.path, timeout_seconds=target.timeout_seconds, token=token
    )
