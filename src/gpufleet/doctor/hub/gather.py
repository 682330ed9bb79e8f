"""Collection of facts about a hub, from its files and from the daemon if it responds.

Certificate and key are inspected by a TLS handshake in memory, as a client sees them.
"""

import datetime as dt
import ipaddress
import os
import pwd
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpufleet.config.hub import HubConfig
from gpufleet.doctor.access import LocalAccess
from gpufleet.doctor.hub.facts import (
    STOPPED,
    CertificateDetails,
    DaemonStatus,
    DiskUsage,
    HubFacts,
    KernelClock,
    LogBacklog,
)
from gpufleet.doctor.hub.files import (
    count_stored_machines,
    inspect_registry,
    inspect_store,
    is_locked,
    lock_holder,
    measure_disk,
    read_tokens,
    reported_clock_skews,
    stored_clock_skews,
)
from gpufleet.hub.receive.listener import Listener, read_listener
from gpufleet.hub.receive.log import read_backlog
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.errors import GpufleetError
from gpufleet.model.time import NANOS, to_ns

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME (openssl/x509_vfy.h): the check judges an expired certificate, so it must be readable."""

_MAX_ROUNDS = 10


def _plain_address(text: str) -> str:
    """Return the usual form of an address, such as ::1 for 0:0:0:0:0:0:0:1."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def inspect_certificate(certificate: str, key: str, name: str | None) -> CertificateDetails | str:
    """Return the details of a certificate and key, or the error.

    Args:
        certificate: PEM file.
        key: PEM file.
        name: name or address that clients use for the hub; None if unknown.
    """
    try:
        key_mode = Path(key).stat().st_mode & 0o777
        shown = _handshake(certificate, key, None)
    except (ssl.SSLError, ssl.CertificateError) as error:
        return f"{certificate} and {key}: {getattr(error, 'verify_message', '') or error.reason or error}"
    except OSError as error:
        return f"{certificate} or {key} cannot be read: {error.strerror}"
    name_matches = None
    if name is not None:
        try:
            _handshake(certificate, key, name)
        except ssl.CertificateError:
            name_matches = False
        else:
            name_matches = True
    alternatives: Any = shown.get("subjectAltName", ())  # pairs of kind and name
    names = tuple(_plain_address(name) if kind == "IP Address" else str(name) for kind, name in alternatives)
    seconds = ssl.cert_time_to_seconds(str(shown["notAfter"]))
    return CertificateDetails(
        names=names, not_after=dt.datetime.fromtimestamp(seconds, dt.UTC), key_mode=key_mode, name_matches=name_matches
    )


def _handshake(certificate: str, key: str, name: str | None) -> "ssl._PeerCertRetDictType":
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key, password="")
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_verify_locations(cafile=certificate)
    client_context.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    client_context.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MAX_ROUNDS):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        peer = client.getpeercert() if client.version() else None
        if peer:
            return peer
    raise ssl.SSLError(1, "the handshake did not complete")


DaemonRequest = Callable[[str], bytes]
"""GET of a path of the daemon; raises GpufleetError with the message of a response other than 200."""

T = TypeVar("T")

_SENDERS = msgspec.json.Decoder(tuple[SenderRecord, ...])


def running_listener(config: HubConfig) -> Listener | str:
    """Return the listener of the process that has the hub's log open, or why it is unknown.

    The process reports it in the state folder. Its options and environment may differ from the configuration.
    """
    reported = _try(lambda: read_listener(config.folder))
    if isinstance(reported, str):
        return reported
    lock = config.folder / "wal" / "lock"
    if _try(lambda: lock_holder(lock) != 0 or (reported is not None and is_locked(lock))) is False:
        return STOPPED
    return reported or "the process that has the log open reports no listener"


def configured_listener(config: HubConfig) -> Listener:
    """Return the listener of a configuration."""
    return Listener(address=config.listen, tls=config.tls.is_on, tokens=config.auth == "tokens")


def gather_hub(
    config: HubConfig,
    request: DaemonRequest,
    access: LocalAccess,
    now: dt.datetime,
    name: str | None,
    listener: Listener | str,
) -> HubFacts:
    """Collect all facts about a hub.

    Args:
        config: configuration of the hub.
        request: sends a request to the daemon.
        access: permissions of this process.
        now: current time of this machine's clock.
        name: host name that clients use for the hub, if known.
        listener: result of `running_listener`.
    """
    folder = config.folder
    lock = folder / "wal" / "lock"
    holder = _try(lambda: lock_holder(lock))
    if holder == 0 and isinstance(listener, Listener):
        holder = -1  # /proc/locks does not list the lock of this file system
    daemon = _try(lambda: _daemon_status(request))
    another = False
    if holder == 0 and isinstance(daemon, DaemonStatus):
        another = _try(lambda: is_locked(lock)) is False
        holder, daemon = (0, "another daemon responds at its address") if another else (-1, daemon)
    clock = access.kernel_clock()
    other_owner = _other_owner(folder)
    is_hub, requires_tokens = config.relay.to is None, config.auth == "tokens"
    closed = (
        f"only {other_owner} can open it" if other_owner else "" if folder.is_dir() else f"{folder} does not exist yet"
    )
    return HubFacts(
        at=now,
        folder=str(folder),
        folder_error="ENOENT" if not folder.is_dir() else access.folder(str(folder)),
        other_owner=other_owner,
        relay_to=config.relay.to,
        configured=configured_listener(config),
        listener=listener,
        holder=holder,
        daemon=daemon,
        foreign_daemon=another,
        disk=_try(lambda: _disk_usage(folder, now)),
        clock="adjtimex(2) is not available here" if clock is None else KernelClock(*clock),
        registry=closed or inspect_registry(config) if is_hub or requires_tokens else None,
        store=closed or inspect_store(config, holder, daemon) if is_hub else None,
        backlog=_log_backlog(folder, daemon, now, closed),
        wal_max_bytes=config.ingest.wal_max_bytes,
        machines=closed or count_stored_machines(config) if is_hub else None,
        certificate=_certificate(config, name),
        clock_skews=_clock_skews(config, request, daemon, now, closed),
        tokens=closed or read_tokens(config) if requires_tokens else None,
    )


def _daemon_status(request: DaemonRequest) -> DaemonStatus:
    page = request("/metrics").decode()
    try:
        request("/readyz")
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
    return DaemonStatus(version=version, ready=ready, figures=figures)


def _disk_usage(folder: Path, now: dt.datetime) -> DiskUsage:
    return measure_disk(folder, now.astimezone(dt.UTC).date())


def _log_backlog(folder: Path, daemon: DaemonStatus | str, now: dt.datetime, closed: str) -> LogBacklog | str:
    if isinstance(daemon, DaemonStatus):
        known = daemon.figures
        lag = known.get("flush_lag_seconds", known.get("forward_lag_seconds"))
        records = int(known.get("wal_records", 0))
        blocked = int(known.get("held_batches", 0))
        return LogBacklog(records, int(known.get("wal_bytes", 0)), lag if records else None, blocked)
    if closed:
        return closed
    found = _try(lambda: read_backlog(folder / "wal"))
    if isinstance(found, str):
        return found
    oldest = found.oldest_received_at
    return LogBacklog(found.records, found.size, None if oldest is None else (to_ns(now) - oldest) / NANOS)


def _certificate(config: HubConfig, name: str | None) -> CertificateDetails | str | None:
    if config.tls.certificate is None or config.tls.key is None:
        return None
    return inspect_certificate(config.tls.certificate, config.tls.key, name)


def _clock_skews(
    config: HubConfig, request: DaemonRequest, daemon: DaemonStatus | str, now: dt.datetime, closed: str
) -> dict[str, float] | str:
    if not isinstance(daemon, DaemonStatus):
        if config.relay.to is not None:
            return f"a relay stores no senders, and it cannot be queried: {daemon}"
        return closed or stored_clock_skews(config, now)

    def read() -> dict[str, float]:
        senders = _SENDERS.decode(request("/v1/senders"))
        return reported_clock_skews(senders, now)

    return _try(read)


def _other_owner(folder: Path) -> str:
    """Return the owner of a folder if it is another user, else an empty text; also if there is no folder."""
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


def _try(query: Callable[[], T]) -> T | str:
    """Run a query, or return the message of its failure."""
    try:
        return query()
    except OSError as error:
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    except (GpufleetError, msgspec.MsgspecError) as error:
        return str(error)
