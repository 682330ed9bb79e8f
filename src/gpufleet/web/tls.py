"""TLS of a listener, from files that are read again when they change."""

import asyncio
import logging
import ssl
from pathlib import Path

from gpufleet.config.tls import TlsConfig
from gpufleet.model.errors import GpufleetError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between looks at whether the files have changed."""

_Stamp = tuple[tuple[int, int, int], ...]


class ServerTls:
    """A context for a server; connections that are made after a reload see the new certificate."""

    def __init__(self, certificate: str, key: str) -> None:
        """Load the files.

        Raises:
            GpufleetError: if they are no certificate and its key.
        """
        self._certificate, self._key = certificate, key
        self._stamp = self._look()
        self.context = _load(_new_context(), certificate, key)

    @classmethod
    def of(cls, config: TlsConfig) -> "ServerTls | None":
        """Load what is configured, if anything is."""
        if config.certificate is None or config.key is None:
            return None
        return cls(config.certificate, config.key)

    async def run(self) -> None:
        """Look for changes until cancelled. Files that are wrong are told once, and what was loaded stays."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            stamp = self._look()
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                # On a context of its own first: half of a pair would leave the living one without any.
                _load(_new_context(), self._certificate, self._key)
                _load(self.context, self._certificate, self._key)
            except GpufleetError as error:
                log.error("the certificate in use stays: %s", error)
            else:
                log.info("certificate %s was read again", self._certificate)

    def _look(self) -> _Stamp:
        stamps: list[tuple[int, int, int]] = []
        for name in (self._certificate, self._key):
            try:
                status = Path(name).stat()
            except OSError:
                stamps.append((0, 0, 0))  # loading says why
            else:
                stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(stamps)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str) -> ssl.SSLContext:
    try:
        # An empty passphrase opens no key, and keeps OpenSSL from asking for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise GpufleetError(f"{certificate} and {key} are no certificate with its key: {reason}") from error
    except OSError as error:
        raise GpufleetError(f"{certificate} or {key} cannot be read: {error.strerror}") from error
    return context
