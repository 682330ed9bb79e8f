"""What a request may cost its receiver."""

import msgspec


class OtlpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request. Passing one of them refuses the request; those of attributes cost only what has them.

    Attributes:
        body_bytes: as it came.
        message_bytes: after decompression. Empty messages take two bytes there and about sixty in memory, so a hostile
            request of this size can take thirty times as much while it is read.
        json_bytes: of a message in JSON, which takes ten times as long to read as protobuf.
        points: data points or log records of one request.
        attributes: of one resource, point or record; a Kubernetes node as a series has more than a hundred.
        name_bytes, value_bytes: of an attribute's name and value, a metric's name, a record's text. A resource loses an
            attribute that passes them, and nothing else.
    """

    body_bytes: int = 8 << 20
    message_bytes: int = 8 << 20
    json_bytes: int = 4 << 20
    points: int = 200_000
    attributes: int = 256
    name_bytes: int = 256
    value_bytes: int = 4 << 10
