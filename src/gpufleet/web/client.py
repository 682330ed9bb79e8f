"""HTTP client for the APIs of agents and hubs, used by the commands and the library.

It waits for one response at a time, verifies certificates, follows no redirects, and sends a token over plain HTTP only
within this machine.
"""

import email.message
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from gpufleet.config.tls import is_loopback
from gpufleet.model.errors import GpufleetError

T = TypeVar("T")

_WRONG_NAME = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH (openssl/x509_vfy.h)."""

_WRONG_TIME = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_NEXT = re.compile(r'<(?P<path>/[^/<>][^<>]*)>; rel="next"')
"""`Link` header of the next page, restricted to the same server."""

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 64 << 20
"""Maximum size of a response, and of all pages of a list."""

PAGE_ENTRIES = 1000
"""Entries per page, where a request sets a limit."""

Query = Mapping[str, str | Sequence[str] | None]
"""Parameters of a request by name; a sequence repeats a parameter, and None leaves it out."""


class RequestError(GpufleetError):
    """A server gives no usable response."""


class ResponseError(RequestError):
    """A server responds with an error.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerAccess(msgspec.Struct, frozen=True):
    """Credentials and trusted authorities of requests.

    Attributes:
        token: returns the token to send, or raises ConfigError; None sends none.
        ca: PEM file of trusted authorities; None means those of the system.
        ca_option: how the caller's user sets `ca`, for messages.
    """

    token: Callable[[], str] | None = None
    ca: Path | None = None
    ca_option: str = "ca=FILE"


def get(base: str, path: str, access: ServerAccess, *, timeout_seconds: float = TIMEOUT_SECONDS) -> bytes:
    """GET `path` of the server at `base`. All pages of a plain list are joined unless `path` sets a limit.

    Raises:
        RequestError: if `base` is not an HTTP URL, or there is no response.
        ResponseError: if its status is not 200. Contains the server's message.
        ConfigError: if the token cannot be read.
    """
    body, following = request(base, path, access, timeout_seconds=timeout_seconds)
    if following is None or not body.startswith(b"[") or "limit=" in path:
        return body
    entries, size = decode_answer(body, list[msgspec.Raw], base), len(body)
    while following is not None:
        body, following = request(base, following, access, timeout_seconds=timeout_seconds)
        size += len(body)
        if size > MAX_BYTES:
            raise RequestError(f"{base}{path} returns more than {MAX_BYTES} bytes")
        entries += decode_answer(body, list[msgspec.Raw], base)
    return msgspec.json.encode(entries)


class _Page(msgspec.Struct, kw_only=True):
    items: list[msgspec.Raw]
    at: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    evaluation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    coverage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    next: str | None


def get_pages(
    base: str,
    path: str,
    query: Query,
    access: ServerAccess,
    most: int | None = None,
    *,
    page_size: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> bytes:
    """GET all pages of a list as one; pages after the first `most` entries are not requested. Raises like `get`."""
    items: list[msgspec.Raw] = []
    sizes = [one for one in (page_size, most) if one is not None]
    limit = str(min(PAGE_ENTRIES, *sizes)) if sizes else None
    cursor: str | None = None
    while True:
        at = with_query(path, {**query, "limit": limit, "cursor": cursor})
        body = get(base, at, access, timeout_seconds=timeout_seconds)
        page = decode_answer(body, _Page, base)
        items += page.items
        if page.next is None or page.next == cursor or (most is not None and len(items) >= most):
            break
        cursor = page.next
    return msgspec.json.encode(msgspec.structs.replace(page, items=items, next=None))


def with_query(path: str, query: Query) -> str:
    """Return a path with parameters."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def decode_answer(body: bytes, answer_type: type[T], base: str) -> T:
    """Return a decoded answer. Raises RequestError if it is not one of a gpufleet hub."""
    try:
        return msgspec.json.decode(body, type=answer_type)
    except msgspec.DecodeError as error:
        raise RequestError(f"{base} does not respond like a gpufleet hub: {error}") from error


def request(
    base: str,
    path: str,
    access: ServerAccess,
    *,
    method: str = "GET",
    content: bytes | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    media_type: str = "",
) -> tuple[bytes, str | None]:
    """Send one request; return the body and the path of the next page, if any. Raises like `get`.

    Args:
        base: URL of the server.
        path: path and query.
        access: credentials.
        method: HTTP method.
        content: JSON body, or None.
        timeout_seconds: longest wait for the connection, and for each part of the response.
        media_type: requested format of the response; empty for the server's choice.
    """
    url = base.rstrip("/") + path
    headers = {} if content is None else {"Content-Type": "application/json"}
    if media_type:
        headers["Accept"] = media_type
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"{base} is not an HTTP URL: use http://HOST:PORT")
        if access.token is not None:
            if parts.scheme == "http" and not is_loopback(parts.hostname):
                raise RequestError(f"{base} would send the token unencrypted over the network: use https")
            headers["Authorization"] = f"Bearer {access.token()}"
        prepared = urllib.request.Request(url, data=content, headers=headers, method=method)  # noqa: S310 - checked above
        with _opener(access, parts.scheme, parts.hostname).open(prepared, timeout=timeout_seconds) as answer:
            body: bytes = answer.read(MAX_BYTES + 1)
            link = _NEXT.fullmatch(answer.headers.get("Link", ""))
    except urllib.error.HTTPError as error:
        with error:
            detail = _error_message(error.read(65_536))
            raise ResponseError(f"{url} returned {error.code}: {detail}", error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise RequestError(f"cannot query {url}: {reason}. {_advice(reason, access)}") from error
    if len(body) > MAX_BYTES:
        raise RequestError(f"{url} returns more than {MAX_BYTES} bytes")
    return body, link["path"] if link else None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that does not follow redirects, which would send the token to another server."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: email.message.Message,
        newurl: str,
    ) -> None:
        return None


def _opener(access: ServerAccess, scheme: str, host: str) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if scheme == "https" or access.ca is not None:  # loading the system's authorities takes 20 ms
        try:
            context = ssl.create_default_context(cafile=access.ca)
        except OSError as error:
            raise RequestError(f"cannot load authorities from {access.ca}: {error.strerror or error}") from error
        handlers.append(urllib.request.HTTPSHandler(context=context))
    if is_loopback(host):  # a proxy would get the token, which plain HTTP may send to this machine only
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def _advice(reason: object, access: ServerAccess) -> str:
    """Return what to try after a failed connection."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        if reason.verify_code in _WRONG_NAME:
            return "Use a host name that is in the server's certificate"
        if reason.verify_code in _WRONG_TIME:
            return "Renew the server's certificate, and check the clock of this machine"
        if access.ca is not None:
            return f"{access.ca} does not contain the authority that signed the certificate"
        return f"Set the PEM file of the authority that signed the certificate: {access.ca_option}"
    if isinstance(reason, ssl.SSLError):
        return "If the server uses plain HTTP, use http://"
    if isinstance(reason, http.client.HTTPException | ConnectionResetError):
        return "If the server uses TLS, use https://"
    return "Check that it is running, and its address"


def _error_message(body: bytes) -> str:
    """Return the message of an error document, or the start of the body."""
    text = body.decode("utf-8", "replace").strip()
    try:
        document: Any = json.loads(text)
    except ValueError:
        return text[:200]
    if isinstance(document, dict):
        for key in ("detail", "error", "message"):
            if isinstance(document.get(key), str):
                return str(document[key])
    return text[:200]
