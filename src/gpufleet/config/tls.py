"""Configuration of TLS on a listener, and what it takes to listen beyond this machine."""

import ipaddress

import msgspec

from gpufleet.config.load import ImpossibleValueError


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificate that a listener shows; both or neither. Files that change are read again.

    Attributes:
        certificate: PEM file of the certificate, such as `/etc/gpufleet/tls.crt`, followed by those of the authorities
            between it and the root.
        key: PEM file of its private key, without a passphrase, such as `/etc/gpufleet/tls.key`.
    """

    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        """Refuse half of it."""
        check_pair(self.certificate, self.key)

    @property
    def is_on(self) -> bool:
        """Whether the listener speaks TLS."""
        return bool(self.certificate and self.key)


def check_pair(certificate: str | None, key: str | None) -> None:
    """Refuse a certificate without its key, and a key without its certificate.

    Raises:
        ImpossibleValueError: blaming the one that is there.
    """
    if bool(certificate) != bool(key):
        given, missing = ("certificate", "key") if certificate else ("key", "certificate")
        raise ImpossibleValueError(given, f"is of no use without {missing}: give both")


def check_exposure(listen: str, host: str, lacking: list[str]) -> None:
    """Refuse to be reachable from other machines while something is lacking.

    Raises:
        ImpossibleValueError: naming what is lacking and what to do.
    """
    if lacking and not is_loopback(host):
        raise ImpossibleValueError(
            "listen",
            f"{listen} is reachable from other machines, without {' and '.join(lacking)}: set what is missing, "
            "listen on 127.0.0.1, or set insecure_listen = true if the network is trusted",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect there; a name other than localhost is taken for reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
