"""Connection of a node to its hub, tested step by step as the agent uses it: name, TCP, TLS, token and cluster.

A text in place of a value is the reason why it could not be collected. A step after a failed one is not tried. Nothing
is posted: the hub describes the token's access without storing anything.
"""

import datetime as dt
import email.utils
import enum
import http.client
import os
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from gpufleet import __version__
from gpufleet.config.agent import AgentConfig, HubClientConfig
from gpufleet.config.secret_files import TokenFile
from gpufleet.model.access import CallerAccess
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import ConfigError
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.spool.recovery import inspect_spool

ACCESS_PATH = "/v1/access"

MAX_ADDRESSES = 8
"""Most addresses of a name that are tried."""

MAX_ANSWER_BYTES = 65_536

_WRONG_NAME = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH (openssl/x509_vfy.h)."""

_WRONG_TIME = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

NOT_TRIED = "not checked: an earlier step failed"


class TlsProblem(enum.StrEnum):
    """Cause of a failed TLS handshake."""

    NAME = "name"  # the certificate is for other names
    TIME = "time"  # the certificate is not valid now, by this node's clock
    CHAIN = "chain"  # no trusted CA signed the certificate
    CA_FILE = "ca_file"  # the file of trusted CAs cannot be used
    PROTOCOL = "protocol"  # the peer does not speak TLS, or no common version


class TlsSession(msgspec.Struct, frozen=True):
    """Completed TLS handshake: protocol version and the end of the certificate's validity."""

    version: str
    not_after: dt.datetime


class TlsFailure(msgspec.Struct, frozen=True):
    """Failed TLS handshake."""

    problem: TlsProblem
    detail: str


class HubRefusal(msgspec.Struct, frozen=True):
    """Error response of a hub: HTTP status, error code and detail."""

    status: int
    error: str
    detail: str


class DeliveryState(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery of an agent's batches.

    Attributes:
        records, bytes: backlog; None if the agent cannot open its spool.
        agent_error: why the running agent could not be queried; the backlog is then that of the spool on disk.
        last_success: when the hub last acknowledged a batch since the agent's start; None for never or unknown.
        failures: failed posts since the agent's start.
    """

    records: int | None
    bytes: int | None
    agent_error: str = ""
    last_success: dt.datetime | None = None
    failures: int = 0


class HubConnection(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a node's connection to its hub.

    Attributes:
        url: root URL of the hub, empty if none is configured.
        cluster: cluster of the node.
        at: time of collection.
        heartbeat_seconds: interval of the agent's heartbeats.
        addresses: addresses of the hub's name.
        peer: address that accepted a connection.
        tls: the handshake; None for plain HTTP.
        token_file: file of the token, if any.
        token_mode: permission bits of that file.
        answer: access that the hub reports for the token.
        clock_ahead: seconds by which this node's clock is ahead of the hub's; None if unknown. Accurate to 2 s.
        delivery: state of the agent's batches.
    """

    url: str
    cluster: str = ""
    at: dt.datetime
    heartbeat_seconds: float = 30.0
    addresses: tuple[str, ...] | str = NOT_TRIED
    peer: str | None = None
    peer_error: str = NOT_TRIED
    tls: TlsSession | TlsFailure | str | None = NOT_TRIED
    token_file: str | None = None
    token_mode: int | None = None
    answer: CallerAccess | HubRefusal | str = NOT_TRIED
    clock_ahead: float | None = None
    delivery: DeliveryState | str = "not checked"


def probe_hub(hub: HubClientConfig, *, cluster: str, now: dt.datetime) -> HubConnection:
    """Test the connection to a hub. Blocking, for at most a few times the timeout of a request."""
    facts = HubConnection(
        url=hub.url or "",
        cluster=cluster,
        at=now,
        heartbeat_seconds=hub.heartbeat_seconds,
        token_file=hub.token_file,
        token_mode=_mode(hub.token_file),
    )
    if hub.url is None:
        return facts
    parts = urlsplit(hub.url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[:MAX_ADDRESSES]
    except (OSError, UnicodeError) as error:
        return msgspec.structs.replace(facts, addresses=f"{host}: {getattr(error, 'strerror', None) or error}")
    facts = msgspec.structs.replace(facts, addresses=tuple(dict.fromkeys(str(one[4][0]) for one in found)))
    failures: list[str] = []
    for family, kind, protocol, _, address in found:
        plain = socket.socket(family, kind, protocol)
        plain.settimeout(hub.timeout_seconds)
        try:
            plain.connect(address)
        except OSError as error:
            plain.close()
            failures.append(f"{address[0]} port {port}: {error.strerror or error}")
            continue
        with plain:
            facts = msgspec.structs.replace(facts, peer=f"{address[0]} port {port}", peer_error="")
            return _handshake(facts, hub, plain, host, secure=secure)
    return msgspec.structs.replace(facts, peer_error="; ".join(failures))


def _handshake(
    facts: HubConnection, hub: HubClientConfig, plain: socket.socket, host: str, *, secure: bool
) -> HubConnection:
    if not secure:
        return _request(msgspec.structs.replace(facts, tls=None), hub, plain)
    try:
        context = ssl.create_default_context(cafile=hub.ca)
    except OSError as error:
        detail = f"{hub.ca}: {error.strerror or error}"
        return msgspec.structs.replace(facts, tls=TlsFailure(TlsProblem.CA_FILE, detail))
    try:
        wrapped = context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        problem = (
            TlsProblem.NAME
            if error.verify_code in _WRONG_NAME
            else TlsProblem.TIME
            if error.verify_code in _WRONG_TIME
            else TlsProblem.CHAIN
        )
        return msgspec.structs.replace(facts, tls=TlsFailure(problem, error.verify_message))
    except ssl.SSLError as error:
        return msgspec.structs.replace(facts, tls=TlsFailure(TlsProblem.PROTOCOL, error.reason or str(error)))
    except OSError as error:
        return msgspec.structs.replace(facts, tls=f"the handshake did not complete: {error.strerror or error}")
    with wrapped:
        shown: dict[str, Any] = wrapped.getpeercert() or {}
        not_after = dt.datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), dt.UTC)
        facts = msgspec.structs.replace(facts, tls=TlsSession(wrapped.version() or "", not_after))
        return _request(facts, hub, wrapped)


def _request(facts: HubConnection, hub: HubClientConfig, connected: socket.socket) -> HubConnection:
    """Request the token's access over an open connection."""
    headers = {"User-Agent": f"gpufleet-doctor/{__version__}", "Accept": "application/json", "Connection": "close"}
    try:
        if hub.token_file is not None:
            headers["Authorization"] = f"Bearer {TokenFile(hub.token_file).token()}"
    except ConfigError as error:
        return msgspec.structs.replace(facts, answer=str(error))
    parts = urlsplit(facts.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.sock = connected
    try:
        path = f"{parts.path.rstrip('/')}{ACCESS_PATH}?cluster={quote(facts.cluster, safe='')}"
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        return msgspec.structs.replace(facts, answer=f"no HTTP response: {type(error).__name__}: {error}")
    return msgspec.structs.replace(
        facts,
        answer=_parse_answer(response.status, body),
        clock_ahead=_clock_ahead(response.getheader("Date", "")),
    )


def _parse_answer(status: int, body: bytes) -> CallerAccess | HubRefusal | str:
    try:
        if status == 200:
            return msgspec.json.decode(body, type=CallerAccess)
        error = msgspec.json.decode(body, type=ErrorAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return f"it answers {status}, but not as a gpufleet hub: {body[:100].decode('utf-8', 'replace').strip()!r}"
    return HubRefusal(status, error.error, error.detail)


def _clock_ahead(date: str) -> float | None:
    try:
        there = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return None
    return None if there.tzinfo is None else (dt.datetime.now(dt.UTC) - there).total_seconds()


def _mode(path: str | None) -> int | None:
    try:
        return None if path is None else Path(path).stat().st_mode & 0o777
    except OSError:
        return None


_FAMILIES = {
    "gpufleet_spool_records": "records",
    "gpufleet_spool_bytes": "bytes",
    "gpufleet_push_failures_total": "failures",
    "gpufleet_push_last_success_timestamp_seconds": "last_success",
}


def parse_delivery(page: str) -> DeliveryState | str:
    """Return the delivery state from a running agent's metrics page."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        family = line.partition("{")[0].partition(" ")[0]
        if family in _FAMILIES:
            found[_FAMILIES[family]] = float(line.rpartition(" ")[2])
    if "failures" not in found:
        return "the running agent pushes to no hub: it was started with another configuration"
    at = found.get("last_success")
    return DeliveryState(
        records=None if "records" not in found else int(found["records"]),
        bytes=None if "bytes" not in found else int(found["bytes"]),
        failures=int(found["failures"]),
        last_success=None if at is None else to_datetime(int(at * NANOS)),
    )


def stopped_delivery(config: AgentConfig, agent_error: str) -> DeliveryState | str:
    """Return the backlog on disk of an agent that cannot be queried. Nothing is changed."""
    folder = config.folder / "spool"
    try:
        if not folder.is_dir():
            return DeliveryState(records=0, bytes=0, agent_error=agent_error)
        os.listdir(folder)  # noqa: PTH208 - `glob` ignores a folder that cannot be read
        contents = inspect_spool(folder)
    except OSError as error:
        return f"{agent_error}; its spool cannot be read: {error.strerror}"
    return DeliveryState(records=contents.records, bytes=contents.size, agent_error=agent_error)
