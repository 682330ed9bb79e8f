"""Prometheus remote write: what a receiver's answers mean, and falling back from 2.0 to 1.0.

Specifications: prometheus.io/docs/specs/prw/remote_write_spec and remote_write_spec_2_0.
"""

import logging

from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import CONTENT_TYPE_1, CONTENT_TYPE_2, Point, encode_1
from gpufleet.codecs.remote_write.known import NAME
from gpufleet.sending.http import HttpAnswer, HttpSender, HttpWire
from gpufleet.sending.outlet import Fate, Parcel, Reply

log = logging.getLogger(__name__)

WRITTEN = "x-prometheus-remote-write-samples-written"
"""The header by which a receiver of 2.0 tells how many samples it has written."""

_UNSUPPORTED = 415
_TOO_MANY = 429


class RemoteWriteWire(HttpWire):
    """One receiver. Bodies are of 2.0 if that is spoken, and are written anew as 1.0 where it is not after all."""

    def __init__(self, sender: HttpSender, version: str) -> None:
        """Take where to post, and in which version: `1.0` or `2.0`."""
        super().__init__(sender)
        self._version = version
        self._falls_back = False

    async def post(self, parcel: Parcel) -> Reply:
        """Post one request."""
        if self._version == "2.0" and not self._falls_back:
            answer = await self._post(parcel.body, CONTENT_TYPE_2, "2.0.0")
            if not is_of_an_older_receiver(answer):
                return judge_2(answer, parcel.points)
            log.info("%s does not speak remote write 2.0: it gets 1.0 from now on", self.where)
            self._falls_back = True
        body = as_version_1(parcel.body) if self._falls_back else parcel.body
        return judge_1(await self._post(body, CONTENT_TYPE_1, "0.1.0"))

    async def _post(self, body: bytes, content_type: str, version: str) -> HttpAnswer:
        headers = {
            "Content-Type": content_type,
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": version,
        }
        return await self._sender.post(body, headers)


def is_of_an_older_receiver(answer: HttpAnswer) -> bool:
    """Tell whether an answer to 2.0 comes from a receiver of 1.0 alone.

    One that looks at the content type answers 415. One that does not reads the message as an empty one of its own,
    and answers 2xx without a word about what it has written.
    """
    silent = 200 <= answer.status < 300 and not answer.is_a_page and WRITTEN not in answer.headers
    return silent or answer.status == _UNSUPPORTED


def judge_1(answer: HttpAnswer) -> Reply:
    """Return what to do after an answer to 1.0."""
    status = answer.status
    if 200 <= status < 300 and not answer.is_a_page:
        return Reply(fate=Fate.TAKEN)
    if 400 <= status < 500 and status != _TOO_MANY:
        return Reply(fate=Fate.REFUSED, words=answer.words)
    return Reply(fate=Fate.LATER, words=answer.words, retry_after=answer.retry_after)


def judge_2(answer: HttpAnswer, points: int) -> Reply:
    """Return what to do after an answer to 2.0, which tells how many of the points were written."""
    reply = judge_1(answer)
    text = answer.headers.get(WRITTEN, "")
    written = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    missing = max(0, points - written)
    if reply.fate is Fate.TAKEN and missing:
        return Reply(fate=Fate.TAKEN, rejected=missing, words=f"{written} of {points} samples were written")
    if reply.fate is Fate.REFUSED:
        return Reply(fate=Fate.REFUSED, rejected=missing, words=answer.words)
    return reply


def as_version_1(body: bytes) -> bytes:
    """Write a body of 2.0 that we made as 1.0."""
    request = WriteDecoder().decode_2(body)
    stale = set(request.stale)
    return encode_1(
        Point({NAME: series.name, **series.labels}, None if number in stale else value, at)
        for number, (series, value, at) in enumerate(zip(request.series, request.values, request.times, strict=True))
    )
