"""What may stand where a configuration names a hub."""

from urllib.parse import urlsplit

from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.tls import is_loopback


def check_http_root(key: str, url: str) -> None:
    """Refuse what is not the root of an HTTP server.

    Raises:
        ImpossibleValueError: blaming `key`.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # read for its judgement: it is a number of a port
    except ValueError as error:
        raise ImpossibleValueError(key, f"{url!r} is no HTTP server: {error}") from error
    plain = url.isprintable() and " " not in url and not parts.query and not parts.fragment
    if not plain or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ImpossibleValueError(key, f"{url!r} is no root of an HTTP server, such as http://127.0.0.1:19999")


def check_push_url(key: str, url: str, *, shows_secrets: bool) -> None:
    """Refuse what is no address to post to, and to show secrets to whoever listens on the way.

    Raises:
        ImpossibleValueError: blaming `key`.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # read for its judgement: it is a number of a port
    except ValueError as error:
        raise ImpossibleValueError(key, f"{url!r} is no address: {error}") from error
    if not url.isprintable() or " " in url or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ImpossibleValueError(key, f"{url!r} is no address: write http://HOST:PORT/PATH or https://HOST/PATH")
    if parts.fragment or parts.username is not None:
        raise ImpossibleValueError(key, "has a fragment or a password: passwords go into headers_file or token_file")
    if shows_secrets and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ImpossibleValueError(
            key,
            f"{url!r} would take credentials over the network in the clear: use https, or set insecure = true "
            "beside it if the network is trusted",
        )


def check_hub_url(key: str, url: str, *, shows_token: bool) -> None:
    """Refuse what is not the root of an HTTP server, and to show a token to whoever listens on the way.

    Args:
        key: the key that is blamed.
        url: what it says.
        shows_token: a token is shown there, and the network is not said to be trusted.

    Raises:
        ImpossibleValueError: with the reason.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # read for its judgement: it is a number of a port
    except ValueError as error:
        raise ImpossibleValueError(key, f"{url!r} is not a hub: {error}") from error
    if not url.isprintable() or " " in url or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ImpossibleValueError(key, f"{url!r} is not a hub: write http://HOST:PORT or https://HOST")
    if parts.query or parts.fragment:
        raise ImpossibleValueError(key, f"{url!r} has a query or fragment: write the hub's root only")
    if shows_token and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ImpossibleValueError(
            key,
            f"{url!r} would take the token over the network in the clear: use https, or set insecure = true "
            "beside it if the network is trusted",
        )
