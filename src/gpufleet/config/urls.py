"""Validation of URLs in configurations: hubs, metrics pages and push receivers."""

from urllib.parse import SplitResult, urlsplit

from gpufleet.config.load import InvalidValueError
from gpufleet.config.tls import is_loopback


def parse_http_url(key: str, url: str, *, invalid: str, example: str) -> SplitResult:
    """Parse an HTTP URL.

    Args:
        key: the configuration key.
        url: its value.
        invalid: description for error messages, such as `not a URL`.
        example: the valid form.

    Raises:
        InvalidValueError: if the URL is invalid.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError as error:
        raise InvalidValueError(key, f"{url!r} is {invalid}: {error}") from error
    if not url.isprintable() or " " in url or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValueError(key, f"{url!r} is {invalid}: write {example}")
    return parts


def check_plain_http(key: str, url: str, parts: SplitResult, what: str) -> None:
    """Refuse plain HTTP for secrets beyond loopback.

    Raises:
        InvalidValueError: naming `key`, with what to do.
    """
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise InvalidValueError(
            key,
            f"{url!r} would send {what} unencrypted over the network: use https, or set insecure = true "
            "in the same table if the network is trusted",
        )


def check_http_root(key: str, url: str) -> None:
    """Check that a URL is the root of an HTTP server.

    Raises:
        InvalidValueError: naming `key`.
    """
    example = "http://HOST:PORT, such as http://127.0.0.1:19999"
    parts = parse_http_url(key, url, invalid="not the root URL of an HTTP server", example=example)
    if parts.query or parts.fragment:
        raise InvalidValueError(key, f"{url!r} has a query or fragment: write {example}")


def check_push_url(key: str, url: str, *, sends_secrets: bool) -> None:
    """Check the URL of a push receiver, and refuse secrets over plain HTTP beyond loopback.

    Raises:
        InvalidValueError: naming `key`.
    """
    parts = parse_http_url(key, url, invalid="not a URL", example="http://HOST:PORT/PATH or https://HOST/PATH")
    if parts.fragment or parts.username is not None:
        raise InvalidValueError(key, "has a fragment or a password: passwords go into headers_file or token_file")
    if sends_secrets:
        check_plain_http(key, url, parts, "credentials")


def check_hub_url(key: str, url: str, *, sends_token: bool) -> None:
    """Check that a URL is the root of a hub, and refuse the token over plain HTTP beyond loopback.

    Args:
        key: the configuration key.
        url: its value.
        sends_token: a token is sent, and the network is not declared as trusted.

    Raises:
        InvalidValueError: naming `key`.
    """
    parts = parse_http_url(key, url, invalid="not the root URL of a hub", example="http://HOST:PORT or https://HOST")
    if parts.query or parts.fragment:
        raise InvalidValueError(key, f"{url!r} has a query or fragment: write the hub's root only")
    if sends_token:
        check_plain_http(key, url, parts, "the token")


def check_page_url(key: str, url: str, *, sends_token: bool) -> None:
    """Check the URL of a metrics page, and refuse the token over plain HTTP beyond loopback.

    Raises:
        InvalidValueError: naming `key`.
    """
    example = "http://HOST:PORT/PATH, such as http://127.0.0.1:9400/metrics"
    parts = parse_http_url(key, url, invalid="not the URL of a metrics page", example=example)
    if parts.fragment or parts.username:
        raise InvalidValueError(
            key, f"{url!r} is not the URL of a metrics page: it has a fragment or a user; write {example}"
        )
    if parts.path in ("", "/"):
        raise InvalidValueError(key, f"{url!r} has no path: most exporters serve /metrics")
    if sends_token:
        check_plain_http(key, url, parts, "the token")
