"""Store DSN: a folder of the embedded engine, or a database of a server."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import msgspec

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.schema.tables import Engine

EMBEDDED = "chdb"
SERVER = "clickhouse"
TLS_PORTS = (443, 8443)
DEFAULT_PORTS = {"http": 8123, "https": 8443}

_FORM = "clickhouse://user:password@host:port/database"
_UNREADABLE = f"store DSN: write {_FORM}, with characters of user and password other than letters and digits as %XX"


class Dsn(msgspec.Struct, frozen=True):
    """Parsed store DSN.

    Attributes:
        url: URL for the client library.
        path: folder of the embedded database, or None for a server.
        engine: variant of the engine clause.
        shown: the DSN without user, password and options, for messages.
        secure: whether the connection uses TLS.
        ca: file of CA certificates, or None for those of the system.
    """

    url: str
    path: Path | None
    engine: Engine
    shown: str
    secure: bool = False
    ca: Path | None = None


def parse_dsn(dsn: str) -> Dsn:
    """Parse a DSN: `chdb:///absolute/folder`, or `clickhouse://user:password@host:port/database`.

    A server DSN accepts options: `replicated=1` creates tables with Replicated engines, `secure=1` (implied by the
    ports 443 and 8443) uses TLS, and `ca=/file.pem` names the CA certificates.

    Raises:
        StoreError: if the DSN is invalid; the message never contains a password.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:  # its message may contain the password
        raise StoreError(_UNREADABLE) from None
    if parts.scheme == EMBEDDED:
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/" or parts.query or parts.fragment:
            raise StoreError(f"{dsn}: write chdb:///absolute/path/of/a/folder")
        return Dsn(url=dsn, path=Path(parts.path), engine=Engine.PLAIN, shown=dsn)
    if parts.scheme != SERVER:
        raise StoreError(
            f"store DSN has the scheme {parts.scheme!r}: write chdb:///folder or clickhouse://host:port/db"
        )
    try:
        host, port = parts.hostname, parts.port
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise StoreError(_UNREADABLE) from None
    if "@" in parts.path or parts.fragment:
        raise StoreError(_UNREADABLE)  # not shown: the path may contain a part of the password
    shown = f"clickhouse://{host}{f':{port}' if port else ''}{parts.path}"
    given = {name: values[-1] for name, values in options.items()}
    flags = [given.get(name, "0") for name in ("replicated", "secure")]
    if not host or parts.path in ("", "/") or given.keys() - {"replicated", "secure", "ca"} or set(flags) - {"0", "1"}:
        raise StoreError(f"{shown}: write {_FORM} with any of the options ?replicated=1&secure=1&ca=/file.pem")
    secure = flags[1] == "1" or port in TLS_PORTS
    if "ca" in given and not secure:
        raise StoreError(f"{shown}: ca= requires TLS: add secure=1")
    return Dsn(
        url=urlunsplit(parts._replace(query="")),
        path=None,
        engine=Engine.REPLICATED if flags[0] == "1" else Engine.PLAIN,
        shown=shown,
        secure=secure,
        ca=Path(given["ca"]) if "ca" in given else None,
    )
