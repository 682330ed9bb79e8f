"""Requests of the ClickHouse HTTP interface, parsed from address, headers and body. Pure.

https://clickhouse.com/docs/interfaces/http
"""

import base64
import email.parser
import email.policy
import gzip
import importlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import zstandard

_LZ4: Any = importlib.import_module("lz4.frame")  # it has no types

_OF_THE_PROTOCOL = frozenset(
    (
        "query", "database", "session_id", "session_timeout", "session_check", "user", "password", "query_id",
        "quota_key", "role", "default_format", "compress", "decompress", "buffer_size", "wait_end_of_query",
        "client_protocol_version", "enable_http_compression", "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
    )
)  # fmt: skip
"""Parameters that are not settings of the statement."""

MAX_FIELD_BYTES = 128 << 10
"""Default of the server's `http_max_field_value_size`."""

_INSERT = re.compile(rb"\s*(INSERT\s+INTO\s+(?:[^\n](?!\bFORMAT\b))*?)\s+FORMAT\s+(\w+)[ \t]*\r?\n", re.IGNORECASE)


class Request(msgspec.Struct, frozen=True):
    """Parsed request.

    Attributes:
        user, password: from `Authorization`, or from the address.
        statement: SQL; for an insert with rows, the part before `FORMAT`.
        rows: format and bytes of the rows of an insert, or None.
        read_only: whether the method is GET.
        compressed: accepted encoding of the response, or an empty text.
    """

    user: str
    password: str
    session: str
    database: str
    statement: str
    rows: tuple[str, bytes] | None
    settings: dict[str, str]
    parameters: dict[str, str]
    read_only: bool
    compressed: str


def read_request(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
    """Parse a request.

    Raises:
        ValueError: for an invalid request.
    """
    arguments = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))
    body = _UNPACKED[headers.get("Content-Encoding", "identity")](body)
    if headers.get("Content-Type", "").startswith("multipart/form-data"):
        arguments |= _form(headers["Content-Type"], body)
        body = b""
    for name, value in arguments.items():
        if len(value) > MAX_FIELD_BYTES:
            raise ValueError(f"field value too long: {name} has {len(value)} bytes")
    query = arguments.get("query", "").encode()
    whole = query + b"\n" + body if query and body else query or body
    insert = _INSERT.match(whole)
    scheme, _, credentials = headers.get("Authorization", "").partition(" ")
    user, _, password = base64.b64decode(credentials).decode().partition(":") if scheme == "Basic" else ("", "", "")
    accepted = headers.get("Accept-Encoding", "").split(",") if arguments.get("enable_http_compression") == "1" else []
    return Request(
        user=user or arguments.get("user", "default"),
        password=password or arguments.get("password", ""),
        session=arguments.get("session_id", ""),
        database=arguments.get("database", ""),
        statement=(insert[1] if insert else whole).decode(),
        rows=(insert[2].decode(), whole[insert.end() :]) if insert else None,
        settings={
            name: value
            for name, value in arguments.items()
            if name not in _OF_THE_PROTOCOL and not name.startswith("param_") and value
        },
        parameters={
            name.removeprefix("param_"): value for name, value in arguments.items() if name.startswith("param_")
        },
        read_only=method == "GET",
        compressed=next((one.strip() for one in accepted if one.strip() in PACKED), ""),
    )


def _form(kind: str, body: bytes) -> dict[str, str]:
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    fields = {}
    for part in form.iter_parts():
        content = part.get_payload(decode=True)
        fields[str(part.get_param("name", header="content-disposition"))] = bytes(content).decode()
    return fields


_UNPACKED: dict[str, Callable[[bytes], bytes]] = {
    "identity": lambda body: body,
    "lz4": _LZ4.decompress,
    "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "lz4": _LZ4.compress,
    "zstd": lambda body: zstandard.ZstdCompressor().compress(body),
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}
"""Response compression by encoding."""
