"""What may stand where a configuration names an HTTP server: a hub, a page, an address to post to."""

from urllib.parse import SplitResult, urlsplit

from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.tls import is_loopback


def http_parts(key: str, url: str, *, what: str, write: str) -> SplitResult:
    """Take an HTTP address apart.

    Args:
        key: the key that is blamed.
        url: what it says.
        what: what it is not, with its negation.
        write: how one is written.

    Raises:
        ImpossibleValueError: if it is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # read for its judgement: it is a number of a port
    except ValueError as error:
        raise ImpossibleValueError(key, f"{url!r} is {what}: {error}") from error
    if not url.isprintable() or " " in url or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ImpossibleValueError(key, f"{url!r} is {what}: write {write}")
    return parts


def refuse_in_the_clear(key: str, url: str, parts: SplitResult, what: str) -> None:
    """Refuse to take a secret over a network where everybody can read it.

    Raises:
        ImpossibleValueError: with what to do.
    """
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ImpossibleValueError(
            key,
            f"{url!r} would take {what} over the network in the clear: use https, or set insecure = true "
            "beside it if the network is trusted",
        )


def check_http_root(key: str, url: str) -> None:
    """Refuse what is not the root of an HTTP server.

    Raises:
        ImpossibleValueError: blaming `key`.
    """
    write = "http://HOST:PORT, such as http://127.0.0.1:19999"
    parts = http_parts(key, url, what="no root of an HTTP server", write=write)
    if parts.query or parts.fragment:
        raise ImpossibleValueError(key, f"{url!r} has a query or fragment: write {write}")


def check_push_url(key: str, url: str, *, shows_secrets: bool) -> None:
    """Refuse what is no address to post to, and to show secrets to whoever listens on the way.

    Raises:
        ImpossibleValueError: blaming `key`.
    """
    parts = http_parts(key, url, what="no address", write="http://HOST:PORT/PATH or https://HOST/PATH")
    if parts.fragment or parts.username is not None:
        raise ImpossibleValueError(key, "has a fragment or a password: passwords go into headers_file or token_file")
    if shows_secrets:
        refuse_in_the_clear(key, url, parts, "credentials")


def check_hub_url(key: str, url: str, *, shows_token: bool) -> None:
    """Refuse what is not the root of a hub, and to show a token to whoever listens on the way.

    Args:
        key: the key that is blamed.
        url: what it says.
        shows_token: a token is shown there, and the network is not said to be trusted.

    Raises:
        ImpossibleValueError: with the reason.
    """
    parts = http_parts(key, url, what="not a hub", write="http://HOST:PORT or https://HOST")
    if parts.query or parts.fragment:
        raise ImpossibleValueError(key, f"{url!r} has a query or fragment: write the hub's root only")
    if shows_token:
        refuse_in_the_clear(key, url, parts, "the token")


def check_page_url(key: str, url: str, *, shows_token: bool) -> None:
    """Refuse what is no page of an HTTP server, and to show a token in the clear.

    Raises:
        ImpossibleValueError: blaming `key`.
    """
    write = "http://HOST:PORT/PATH, such as http://127.0.0.1:9400/metrics"
    parts = http_parts(key, url, what="no page of metrics", write=write)
    if parts.fragment or parts.username:
        raise ImpossibleValueError(key, f"{url!r} is no page of metrics: it has a fragment or a user; write {write}")
    if parts.path in ("", "/"):
        raise ImpossibleValueError(key, f"{url!r} has no path: most exporters have their page at /metrics")
    if shows_token:
        refuse_in_the_clear(key, url, parts, "the token")
