"""Read-only queries of a libvirt daemon."""

import itertools
import uuid

from gpufleet.codecs import libvirt_wire as wire
from gpufleet.model.text import clean
from gpufleet.ports.channel import Dialer, Stream
from gpufleet.ports.hypervisor import DomainDocument

MAX_NAME = 253
"""Maximum length of a domain's name."""


class LibvirtDomains:
    """The Hypervisor port over libvirt's socket. Each query opens a connection of its own.

    Args:
        dialer: opens the socket.
        uri: connection URI, as for virsh.
    """

    def __init__(self, dialer: Dialer, uri: str) -> None:
        self._dialer, self._uri = dialer, uri

    async def domains(self) -> list[DomainDocument]:
        """Return the running and paused domains; see `Hypervisor.domains`."""
        stream = await self._dialer.dial()
        try:
            serials = itertools.count()
            serial = next(serials)
            await _reply(stream, wire.encode_open(serial, self._uri), wire.OPEN, serial)
            serial = next(serials)
            listed = wire.decode_list(await _reply(stream, wire.encode_list(serial), wire.LIST, serial))
            found: list[DomainDocument] = []
            for ref, serial in zip(listed, serials, strict=False):
                try:
                    body = await _reply(stream, wire.encode_xml(serial, ref), wire.XML, serial)
                except wire.RefusedError:
                    continue  # it ended after it was listed: no other reason for an error is known
                found.append(_document(ref, wire.decode_xml(body)))
            serial = next(serials)
            await _reply(stream, wire.encode_close(serial), wire.CLOSE, serial)
            return found
        finally:
            await stream.close()


async def _reply(stream: Stream, question: bytes, procedure: int, serial: int) -> bytes:
    await stream.send(question)
    size = wire.packet_bytes(await stream.receive_exactly(wire.LENGTH_BYTES))
    return wire.answer_of(await stream.receive_exactly(size), procedure, serial)


def _document(ref: wire.DomainRef, xml: bytes) -> DomainDocument:
    name = ref.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return DomainDocument(name=clean(name)[:MAX_NAME], uuid=str(uuid.UUID(bytes=ref.uuid)), id=ref.id, xml=xml)
