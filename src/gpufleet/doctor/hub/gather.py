"""Gathering the facts about a hub: from its files, and from the daemon where it answers."""

import datetime as dt
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gpufleet.config.hub import HubConfig
from gpufleet.doctor.access import LocalAccess
from gpufleet.doctor.hub.certificate import look_at_certificate
from gpufleet.doctor.hub.facts import Certificate, Daemon, Disk, HubFacts, KernelClock, Waiting
from gpufleet.doctor.hub.files import (
    holder_of,
    is_held,
    look_at_disk,
    look_at_registry,
    look_at_store,
    skews_kept,
    skews_told,
    tokens_of,
)
from gpufleet.hub.receive.log import depth_of
from gpufleet.model.api.answer import SenderRecord
from gpufleet.model.errors import GpufleetError
from gpufleet.model.time import NANOS, to_ns

Ask = Callable[[str], bytes]
"""GET a path of the daemon; raises GpufleetError where the answer is not 200, with its words."""

T = TypeVar("T")

_SENDERS = msgspec.json.Decoder(tuple[SenderRecord, ...])


def gather_hub(config: HubConfig, ask: Ask, access: LocalAccess, now: dt.datetime, name: str | None) -> HubFacts:
    """Collect every fact that can be had.

    Args:
        config: of the hub.
        ask: reaches the daemon, if it runs.
        access: what this process may do here.
        now: by this machine's clock.
        name: the host by which people ask the hub, where that was told.
    """
    folder = config.folder
    lock = folder / "wal" / "lock"
    holder = _tried(lambda: holder_of(lock))
    daemon = _tried(lambda: _daemon(ask))
    another = False
    if holder == 0 and isinstance(daemon, Daemon):
        another = _tried(lambda: is_held(lock)) is False
        holder, daemon = (0, "another one answers at its address") if another else (-1, daemon)
    clock = access.kernel_clock()
    stranger = _stranger(folder)
    is_hub, asks_tokens = config.relay.to is None, config.auth == "tokens"
    closed = f"only {stranger} may open it" if stranger else "" if folder.is_dir() else f"there is no {folder} yet"
    return HubFacts(
        at=now,
        folder=str(folder),
        folder_error="ENOENT" if not folder.is_dir() else access.folder(str(folder)),
        stranger=stranger,
        relay_to=config.relay.to,
        listen=config.listen,
        auth=config.auth,
        tls=config.tls.is_on,
        insecure=config.insecure_listen,
        holder=holder,
        daemon=daemon,
        another_answers=another,
        disk=_tried(lambda: _disk(folder, now)),
        clock="adjtimex(2) cannot be asked here" if clock is None else KernelClock(*clock),
        registry=closed or look_at_registry(config) if is_hub or asks_tokens else None,
        store=closed or look_at_store(config, holder, daemon) if is_hub else None,
        waiting=_waiting(folder, daemon, now, closed),
        wal_max_bytes=config.ingest.wal_max_bytes,
        certificate=_certificate(config, name),
        skews=_skews(config, ask, daemon, now, closed),
        tokens=closed or tokens_of(config) if asks_tokens else None,
    )


def _daemon(ask: Ask) -> Daemon:
    page = ask("/metrics").decode()
    try:
        ask("/readyz")
        ready = ""
    except GpufleetError as error:
        ready = str(error)
    figures: dict[str, float] = {}
    version = ""
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        bare = series.removeprefix("gpufleet_").partition("_")[2]
        if series.startswith("gpufleet_") and "{" not in series:
            figures[bare] = float(value)
        elif bare.startswith("build_info{"):
            version = series.partition('version="')[2].partition('"')[0]
    return Daemon(version=version, ready=ready, figures=figures)


def _disk(folder: Path, now: dt.datetime) -> Disk:
    return look_at_disk(folder, now.astimezone(dt.UTC).date())


def _waiting(folder: Path, daemon: Daemon | str, now: dt.datetime, closed: str) -> Waiting | str:
    if isinstance(daemon, Daemon):
        known = daemon.figures
        lag = known.get("flush_lag_seconds", known.get("forward_lag_seconds"))
        records = int(known.get("wal_records", 0))
        held = int(known.get("held_batches", 0))
        return Waiting(records, int(known.get("wal_bytes", 0)), lag if records else None, held)
    if closed:
        return closed
    found = _tried(lambda: depth_of(folder / "wal"))
    if isinstance(found, str):
        return found
    oldest = found.oldest_received_at
    return Waiting(found.records, found.size, None if oldest is None else (to_ns(now) - oldest) / NANOS)


def _certificate(config: HubConfig, name: str | None) -> Certificate | str | None:
    if config.tls.certificate is None or config.tls.key is None:
        return None
    return look_at_certificate(config.tls.certificate, config.tls.key, name)


def _skews(config: HubConfig, ask: Ask, daemon: Daemon | str, now: dt.datetime, closed: str) -> dict[str, float] | str:
    if not isinstance(daemon, Daemon):
        if config.relay.to is not None:
            return f"a relay remembers no senders, and it cannot be asked: {daemon}"
        return closed or skews_kept(config, now)

    def told() -> dict[str, float]:
        senders = _SENDERS.decode(ask("/v1/senders"))
        return skews_told(((one.sender, one.sent_at, one.received_at) for one in senders), now)

    return _tried(told)


def _stranger(folder: Path) -> str:
    """Return the owner's name where it is not this user; empty where it is, or there is no folder."""
    try:
        owner = folder.stat().st_uid
    except OSError:
        return ""
    if owner == os.geteuid():
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"#{owner}"


def _tried(question: Callable[[], T]) -> T | str:
    """Ask, or return the words of the failure: a check that could not be made is unknown."""
    try:
        return question()
    except OSError as error:
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    except (GpufleetError, msgspec.MsgspecError) as error:
        return str(error)
