"""Asking a running agent or hub over HTTP, from a command."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from gpufleet.cli.errors import CommandError

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 64 << 20


def get(base: str, path: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> bytes:
    """GET `path` of the server at `base`.

    Raises:
        CommandError: if `base` is no HTTP URL, nobody answers, or the answer is not 200; with the server's words.
    """
    return _exchange(base, path, "GET", None, timeout_seconds)


def send(base: str, path: str, *, method: str, body: bytes | None = None) -> bytes:
    """Send JSON with another method than GET, and return the answer; raises as `get`."""
    return _exchange(base, path, method, body, TIMEOUT_SECONDS)


def _exchange(base: str, path: str, method: str, content: bytes | None, timeout_seconds: float) -> bytes:
    url = base.rstrip("/") + path
    if urlsplit(url).scheme not in ("http", "https"):
        raise CommandError(f"{base} is not a URL: write http://HOST:PORT")
    headers = {} if content is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=content, headers=headers, method=method)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310 - http and https only
            body: bytes = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(f"{url} answers {error.code}: {_words(error.read(65_536))}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise CommandError(f"{url} cannot be asked: {reason}. Is it running, and is this its address?") from error
    if len(body) > MAX_BYTES:
        raise CommandError(f"{url} answers with more than {MAX_BYTES} bytes")
    return body


def _words(body: bytes) -> str:
    """Return the words of an error document, or the start of whatever came."""
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
