"""Certificate authority of the tests."""

import datetime as dt
import ssl
from pathlib import Path

import trustme


class Authority:
    """Issuer of certificates for 127.0.0.1; `file` is the certificate that clients trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    @property
    def trusting(self) -> ssl.SSLContext:
        """Client context that trusts only this authority."""
        return ssl.create_default_context(cafile=self.file)

    def issue(self, certificate: Path, key: Path, not_after: dt.datetime | None = None) -> None:
        """Write a new certificate and its key, each atomically."""
        made = self._ca.issue_cert("127.0.0.1", not_after=not_after)
        for content, path in (
            (b"".join(part.bytes() for part in made.cert_chain_pems), certificate),
            (made.private_key_pem.bytes(), key),
        ):
            put_in_place(path, content)


def put_in_place(path: Path, content: bytes) -> None:
    """Replace a file atomically, so that no reader sees half of it."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.replace(path)
