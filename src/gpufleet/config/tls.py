"""TLS configuration of a listener, and the conditions for listening beyond loopback."""

import ipaddress

import msgspec

from gpufleet.config.load import InvalidValueError


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Server certificate of the listener. Set both keys or neither. Changed files are read again.

    Attributes:
        certificate: PEM file of the certificate, such as `/etc/gpufleet/tls.crt`, followed by the intermediate CA
            certificates.
        key: PEM file of the private key, without a passphrase, such as `/etc/gpufleet/tls.key`.
    """

    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        """Refuse a certificate without a key, and the reverse."""
        check_pair(self.certificate, self.key)

    @property
    def is_on(self) -> bool:
        """Return whether the listener uses TLS."""
        return bool(self.certificate and self.key)


def check_pair(certificate: str | None, key: str | None) -> None:
    """Refuse a certificate without its key, and the reverse.

    Raises:
        InvalidValueError: naming the key that is set.
    """
    if bool(certificate) != bool(key):
        given, other = ("certificate", "key") if certificate else ("key", "certificate")
        raise InvalidValueError(given, f"is set but {other} is not: set both")


def check_exposure(listen: str, host: str, missing: list[str]) -> None:
    """Refuse to listen beyond loopback while protection is missing.

    Raises:
        InvalidValueError: naming what is missing and what to do.
    """
    if missing and not is_loopback(host):
        raise InvalidValueError(
            "listen",
            f"{listen} is reachable from other machines without {' and '.join(missing)}: add the missing settings, "
            "listen on 127.0.0.1, or set insecure_listen = true if the network is trusted",
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to `host`. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
