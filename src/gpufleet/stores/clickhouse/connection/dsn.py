"""Where the store is, in one line: a folder of the embedded engine, or a database of a server."""

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
_UNREADABLE = f"store DSN: it is {_FORM}, with %XX for what stands in user and password but letters and digits"


class Dsn(msgspec.Struct, frozen=True):
    """Where the store is.

    Attributes:
        url: as the client library takes it.
        path: folder of the embedded database, or None for a server.
        engine: what stands in the engine clause.
        shown: the DSN without user, password and options, for messages.
        secure: whether it is spoken to over TLS.
        ca: file of the certificates that a server's is proven by, or None for those of the system.
    """

    url: str
    path: Path | None
    engine: Engine
    shown: str
    secure: bool = False
    ca: Path | None = None


def parse_dsn(dsn: str) -> Dsn:
    """Read a DSN: `chdb:///absolute/folder`, or `clickhouse://user:password@host:port/database`.

    A server's may end in options: with `replicated=1` tables are made with Replicated engines, with `secure=1` (and
    always on the ports 443 and 8443) it is spoken to over TLS, and `ca=/file.pem` proves its certificate.

    Raises:
        StoreError: if it is neither; the message does not show a password.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:  # its words may have the password in them
        raise StoreError(_UNREADABLE) from None
    if parts.scheme == EMBEDDED:
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/" or parts.query or parts.fragment:
            raise StoreError(f"{dsn}: write chdb:///absolute/path/of/a/folder")
        return Dsn(url=dsn, path=Path(parts.path), engine=Engine.PLAIN, shown=dsn)
    if parts.scheme != SERVER:
        raise StoreError(f"store DSN begins with {parts.scheme!r}: it is chdb:///folder or clickhouse://host:port/db")
    try:
        host, port = parts.hostname, parts.port
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise StoreError(_UNREADABLE) from None
    if "@" in parts.path or parts.fragment:
        raise StoreError(_UNREADABLE)  # without showing it: a part of the password is where the path should be
    shown = f"clickhouse://{host}{f':{port}' if port else ''}{parts.path}"
    told = {name: values[-1] for name, values in options.items()}
    flags = [told.get(name, "0") for name in ("replicated", "secure")]
    if not host or parts.path in ("", "/") or told.keys() - {"replicated", "secure", "ca"} or set(flags) - {"0", "1"}:
        raise StoreError(f"{shown}: write {_FORM}, and after it what is so of ?replicated=1&secure=1&ca=/file.pem")
    secure = flags[1] == "1" or port in TLS_PORTS
    if "ca" in told and not secure:
        raise StoreError(f"{shown}: ca= is for TLS, which secure=1 asks for")
    return Dsn(
        url=urlunsplit(parts._replace(query="")),
        path=None,
        engine=Engine.REPLICATED if flags[0] == "1" else Engine.PLAIN,
        shown=shown,
        secure=secure,
        ca=Path(told["ca"]) if "ca" in told else None,
    )
