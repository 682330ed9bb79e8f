"""Parsers of the name and UID of a Kubernetes node: the kubelet's client certificate and a pod's token. Pure."""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import printable

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

_USER, _GROUP = "system:node:", "system:nodes"
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]{1,65536}?)-----END CERTIFICATE-----")

_SEQUENCE, _SET, _OBJECT_ID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_COMMON_NAME, _ORGANIZATION = b"\x55\x04\x03", b"\x55\x04\x0a"
_FIELDS_BEFORE_SUBJECT = 4
"""Serial number, algorithm, issuer and validity."""


class NodeClaim(NamedTuple):
    """Node of a pod by its token; empty before Kubernetes 1.30."""

    name: str = ""
    uid: str = ""


def parse_node_name(text: str, where: str) -> str:
    """Parse the name of a node.

    Raises:
        WireError: if it is not a DNS subdomain of at most 253 characters.
    """
    if _NAME.fullmatch(text) is None:
        raise WireError(where, f"{printable(text)[:40]!r} is not a node name")
    return text


def parse_client_certificate(content: bytes, where: str) -> str:
    """Parse the node name from the subject of the first certificate, `O=system:nodes, CN=system:node:NAME`.

    The private key in the same file is skipped.

    Raises:
        WireError: if there is no certificate, or it is not a node's.
    """
    match = _PEM.search(content)
    if match is None:
        raise WireError(where, "has no certificate")
    try:
        subject = list(_subject(base64.b64decode(match[1])))
    except (ValueError, IndexError, StopIteration):
        raise WireError(where, "the certificate is malformed") from None
    names = [text for kind, text in subject if kind == _COMMON_NAME]
    if (_ORGANIZATION, _GROUP) not in subject or len(names) != 1 or not names[0].startswith(_USER):
        raise WireError(where, "the certificate is not of a node")
    return parse_node_name(names[0].removeprefix(_USER), where)


def parse_pod_token(content: bytes, where: str) -> NodeClaim:
    """Parse the node in the claims of a service account token. The signature is not needed and not checked.

    Raises:
        WireError: if it is not a token of Kubernetes.
    """
    parts = content.strip().split(b".")
    try:
        payload = base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)) if len(parts) == 3 else b""
        node = msgspec.json.decode(payload, type=_TokenClaims).kubernetes.node
    except (binascii.Error, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise WireError(where, "is not a token of Kubernetes") from None
    if node is None or _UID.fullmatch(node.uid) is None:
        return NodeClaim()
    return NodeClaim(parse_node_name(node.name, where), node.uid)


class _Node(msgspec.Struct):
    name: str
    uid: str


class _Kubernetes(msgspec.Struct):
    node: _Node | None = None


class _TokenClaims(msgspec.Struct):
    kubernetes: _Kubernetes = msgspec.field(name="kubernetes.io")


def _subject(certificate: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield object id and text of each attribute of an X.509 certificate's subject. Raises ValueError, IndexError."""
    signed = _children(_children(certificate, _SEQUENCE)[0][1])
    if signed[0][0] == _VERSION:
        signed = signed[1:]
    tag, name = signed[_FIELDS_BEFORE_SUBJECT]
    if tag != _SEQUENCE:
        raise ValueError("not a name")
    for kind, group in _children(name):
        for _, attribute in _children(group) if kind == _SET else ():
            (id_tag, object_id), (_, text) = _children(attribute)
            if id_tag == _OBJECT_ID:
                yield object_id, text.decode("utf-8")


def _children(content: bytes, within: int | None = None) -> list[tuple[int, bytes]]:
    """Return tag and content of each DER element. Raises ValueError, IndexError.

    Args:
        content: the elements.
        within: tag of the element whose children are returned, or None for `content` itself.
    """
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(content):
        tag, length, at = content[at], content[at + 1], at + 2
        if length >= 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4:
                raise ValueError("unsupported length")
            length, at = int.from_bytes(content[at : at + size], "big"), at + size
        if at + length > len(content):
            raise ValueError("truncated")
        found.append((tag, content[at : at + length]))
        at += length
    if within is None:
        return found
    if len(found) != 1 or found[0][0] != within:
        raise ValueError("not a single element")
    return _children(found[0][1])
