"""Body and signature of a webhook request: CloudEvents 1.0 in structured JSON mode. Pure.

Specification: github.com/cloudevents/spec, `cloudevents/spec.md` and `cloudevents/bindings/http-protocol-binding.md`.
"""

import datetime as dt
import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from gpufleet.hub.notify.notices import Notice
from gpufleet.hub.query.finding_records import finding_record
from gpufleet.model.api.findings import FindingRecord
from gpufleet.model.time import to_datetime

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"

TIMESTAMP_HEADER = "Gpufleet-Timestamp"
"""Header with the time of the request, in seconds since 1970."""

SIGNATURE_HEADER = "Gpufleet-Signature"
"""Header with `v1=` and the HMAC-SHA256 of timestamp, a dot and body, in hexadecimal digits."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Event, with the attributes of CloudEvents and the extension attributes `reason` and `link`.

    Attributes:
        specversion: version of CloudEvents.
        id: id of the notice: the same in each repetition.
        source: the hub.
        type: `io.gpufleet.finding.` with the kind of the transition.
        time: time of the transition.
        subject: key of the finding's subject; None for the hub itself.
        datacontenttype: media type of `data`.
        reason: reason of the transition.
        data: the finding after the transition, as in the HTTP API.
        link: URL of the finding's page on the hub; None if the hub's address is not configured.
    """

    specversion: str
    id: str
    source: str
    type: str
    time: dt.datetime
    datacontenttype: str
    reason: str
    data: FindingRecord
    subject: str | None = None
    link: str | None = None


_ENCODER = msgspec.json.Encoder()


def encode_event(notice: Notice, source: str, nodes: Mapping[str, str], link: str | None) -> bytes:
    """Return the body of a request about a notice.

    Args:
        notice: the notice.
        source: URI of the hub.
        nodes: names of machines by id.
        link: URL of the finding's page, or None.
    """
    record = finding_record(notice.finding, notice.at, nodes=nodes, acknowledgement=None, silences=())
    return _ENCODER.encode(
        CloudEvent(
            specversion="1.0",
            id=notice.id,
            source=source,
            type=f"io.gpufleet.finding.{notice.kind.value}",
            time=to_datetime(notice.at),
            subject=notice.finding.scope or None,
            datacontenttype="application/json",
            reason=notice.reason,
            data=record,
            link=link,
        )
    )


def sign(secret: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that authenticate a body at a time, in seconds since 1970."""
    digest = hmac.new(secret.encode(), b"%d.%b" % (timestamp, body), hashlib.sha256).hexdigest()
    return {TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: f"v1={digest}"}
