"""OTLP over HTTP: what a receiver's answers mean (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP Response")."""

from gpufleet.codecs.otlp.decode import decode_answer
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.model.errors import WireError
from gpufleet.sending.http import HttpAnswer, HttpSender, HttpWire
from gpufleet.sending.outlet import Fate, Parcel, Reply

_LATER = frozenset({0, 429, 502, 503, 504})
"""Answers that say to try again; 0 is none. Every other one from 400 on is for good, says the specification."""


class OtlpWire(HttpWire):
    """One of a receiver's two addresses."""

    def __init__(self, sender: HttpSender, *, logs: bool) -> None:
        """Take where to post, and whether logs go there, not metrics."""
        super().__init__(sender)
        self._logs = logs

    async def post(self, parcel: Parcel) -> Reply:
        """Post one request, in protobuf that is packed already."""
        headers = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        return judge(await self._sender.post(parcel.body, headers), logs=self._logs)


def judge(answer: HttpAnswer, *, logs: bool) -> Reply:
    """Return what to do after an answer. A redirect or a page for people takes nothing and refuses nothing."""
    status = answer.status
    if status in _LATER or 300 <= status < 400 or answer.is_a_page:
        return Reply(fate=Fate.LATER, words=answer.words, retry_after=answer.retry_after)
    if not 200 <= status < 300:
        return Reply(fate=Fate.REFUSED, words=answer.words)
    if answer.content_type not in (PROTOBUF, JSON) or not answer.body:
        return Reply(fate=Fate.TAKEN)
    try:
        told = decode_answer(answer.body, answer.content_type, logs=logs)
    except WireError as error:
        return Reply(fate=Fate.TAKEN, words=f"an answer that cannot be read: {error}")
    return Reply(fate=Fate.TAKEN, words=told.words, rejected=told.rejected)
