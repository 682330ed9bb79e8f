"""HTTP client of the commands, for agents and hubs."""

import email.message
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from gpufleet.cli.options import CommandError
from gpufleet.config.secret_files import TokenFile
from gpufleet.config.tls import is_loopback

_WRONG_NAME = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH (openssl/x509_vfy.h)."""

_WRONG_TIME = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_NEXT = re.compile(r'<(?P<path>/[^/<>][^<>]*)>; rel="next"')
"""`Link` header of the next page, restricted to the same server."""

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 64 << 20


class HttpError(CommandError):
    """Error response of a server.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Access(msgspec.Struct, frozen=True):
    """Credentials and trusted authorities of a command.

    Attributes:
        token_file: file with the token to send; None sends none.
        ca: PEM file of trusted authorities; None means those of the system.
    """

    token_file: Path | None = None
    ca: Path | None = None


def get(base: str, path: str, access: Access | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> bytes:
    """GET `path` of the server at `base`. All pages of a plain list are joined unless `path` sets a limit.

    Raises:
        CommandError: if `base` is not an HTTP URL, or there is no response.
        HttpError: if its status is not 200. Contains the server's message.
        ConfigError: if the token cannot be read.
    """
    body, following = _exchange(base, path, "GET", None, access or Access(), timeout_seconds)
    if following is None or not body.startswith(b"[") or "limit=" in path:
        return body
    entries, size = msgspec.json.decode(body, type=list[msgspec.Raw]), len(body)
    while following is not None:
        body, following = _exchange(base, following, "GET", None, access or Access(), timeout_seconds)
        size += len(body)
        if size > MAX_BYTES:
            raise CommandError(f"{base}{path} returns more than {MAX_BYTES} bytes")
        try:
            entries += msgspec.json.decode(body, type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise CommandError(f"{base} does not respond like a gpufleet hub: {error}") from error
    return msgspec.json.encode(entries)


def get_as(media_type: str, base: str, path: str, access: Access) -> tuple[bytes, str | None]:
    """GET `path` in a format; return the body and the path of the next page, if any. Raises like `get`."""
    return _exchange(base, path, "GET", None, access, TIMEOUT_SECONDS, media_type)


def send(
    base: str,
    path: str,
    access: Access | None = None,
    *,
    method: str,
    body: bytes | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    media_type: str = "",
) -> bytes:
    """Send JSON with a method other than GET; return the body in the requested format. Raises like `get`."""
    return _exchange(base, path, method, body, access or Access(), timeout_seconds, media_type)[0]


def _exchange(
    base: str,
    path: str,
    method: str,
    content: bytes | None,
    access: Access,
    timeout_seconds: float,
    media_type: str = "",
) -> tuple[bytes, str | None]:
    url = base.rstrip("/") + path
    headers = {} if content is None else {"Content-Type": "application/json"}
    if media_type:
        headers["Accept"] = media_type
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(f"{base} is not an HTTP URL: use http://HOST:PORT")
        if access.token_file is not None:
            if parts.scheme == "http" and not is_loopback(parts.hostname):
                raise CommandError(f"{base} would send the token unencrypted over the network: use https")
            headers["Authorization"] = f"Bearer {TokenFile(str(access.token_file)).token()}"
        request = urllib.request.Request(url, data=content, headers=headers, method=method)  # noqa: S310 - checked above
        with _opener(access, parts.hostname).open(request, timeout=timeout_seconds) as answer:
            body: bytes = answer.read(MAX_BYTES + 1)
            link = _NEXT.fullmatch(answer.headers.get("Link", ""))
    except urllib.error.HTTPError as error:
        with error:
            detail = _error_message(error.read(65_536))
            raise HttpError(f"{url} returned {error.code}: {detail}", error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise CommandError(f"cannot query {url}: {reason}. {_advice(reason, access)}") from error
    if len(body) > MAX_BYTES:
        raise CommandError(f"{url} returns more than {MAX_BYTES} bytes")
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


def _opener(access: Access, host: str) -> urllib.request.OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=access.ca)
    except OSError as error:
        raise CommandError(f"cannot load authorities from {access.ca}: {error.strerror or error}") from error
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), urllib.request.HTTPSHandler(context=context)]
    if is_loopback(host):  # a proxy would get the token, which plain HTTP may send to this machine only
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def _advice(reason: object, access: Access) -> str:
    """Return what to try after a failed connection."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        if reason.verify_code in _WRONG_NAME:
            return "Use a host name that is in the server's certificate"
        if reason.verify_code in _WRONG_TIME:
            return "Renew the server's certificate, and check the clock of this machine"
        if access.ca is not None:
            return f"{access.ca} does not contain the authority that signed the certificate"
        return "Set the PEM file of the authority that signed the certificate: --ca FILE or GPUFLEET_CA"
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
