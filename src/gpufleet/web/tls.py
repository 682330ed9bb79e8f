"""TLS context of a server, reloaded when its files change."""

import asyncio
import logging
import ssl
from pathlib import Path

from gpufleet.config.tls import TlsConfig
from gpufleet.model.errors import GpufleetError

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Interval between checks of the files."""

_Stamp = tuple[tuple[int, int, int], ...]


class ServerTls:
    """TLS context of a server; connections accepted after a reload use the new certificate."""

    def __init__(self, certificate: str, key: str) -> None:
        """Load the files.

        Raises:
            GpufleetError: if they are not a certificate and its key.
        """
        self._certificate, self._key = certificate, key
        self._stamp = self._stat_files()
        self.context = _load(_new_context(), certificate, key)

    @classmethod
    def of(cls, config: TlsConfig) -> "ServerTls | None":
        """Load the configured files; None if TLS is not configured."""
        if config.certificate is None or config.key is None:
            return None
        return cls(config.certificate, config.key)

    async def run(self) -> None:
        """Reload changed files until cancelled. Invalid files are logged once; the loaded certificate stays in use."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            stamp = self._stat_files()
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                # Try on another context first: a certificate without its key would break the context in use.
                _load(_new_context(), self._certificate, self._key)
                _load(self.context, self._certificate, self._key)
            except GpufleetError as error:
                log.error("cannot reload the certificate, the loaded one stays in use: %s", error)
            else:
                log.info("certificate %s reloaded", self._certificate)

    def _stat_files(self) -> _Stamp:
        stamps: list[tuple[int, int, int]] = []
        for name in (self._certificate, self._key):
            try:
                status = Path(name).stat()
            except OSError:
                stamps.append((0, 0, 0))  # loading reports why
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
        # An empty passphrase decrypts no key, and prevents OpenSSL from prompting at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise GpufleetError(f"{certificate} and {key} are not a certificate and its key: {reason}") from error
    except OSError as error:
        raise GpufleetError(f"cannot read {certificate} or {key}: {error.strerror}") from error
    return context
