"""Meaning of HTTP responses of receivers of findings. Pure."""

from urllib.parse import urlsplit

from gpufleet.delivery.export_queue import ExportOutcome
from gpufleet.delivery.transports import HttpAnswer

_RETRIED = frozenset({401, 403, 404, 405, 407, 408, 425, 429})
"""Statuses from 400 to 499 that concern address, credentials or rate, not the body. The same as for posts to a hub."""


def outcome_of(answer: HttpAnswer) -> ExportOutcome:
    """Return what a response means for the body that was posted.

    2xx accepts it. Any other status below 400, 5xx, no response, and statuses about the address, the credentials or
    the rate are temporary. Any other 4xx rejects it.
    """
    if 200 <= answer.status < 300:
        return ExportOutcome.ACCEPTED
    if 400 <= answer.status < 500 and answer.status not in _RETRIED:
        return ExportOutcome.REJECTED
    return ExportOutcome.RETRY


def describe(answer: HttpAnswer, url: str) -> str:
    """Return the host of a URL, and the status of its response or the reason why there was none, for logs.

    The text of the response and the URL are left out. A response can repeat the credentials of the request.
    """
    host = urlsplit(url).hostname
    return f"{host} returned status {answer.status}" if answer.status else f"{host}: {answer.cause}"
