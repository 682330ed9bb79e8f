"""Inspection of a hub's certificate and key by a TLS handshake in memory, as seen by a client."""

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

from gpufleet.doctor.hub.facts import CertificateDetails

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME (openssl/x509_vfy.h): the check judges an expired certificate, so it must be readable."""

_MAX_ROUNDS = 10


def inspect_certificate(certificate: str, key: str, name: str | None) -> CertificateDetails | str:
    """Return the details of a certificate and key, or the error.

    Args:
        certificate: PEM file.
        key: PEM file.
        name: name or address that clients use for the hub; None if unknown.
    """
    try:
        key_mode = Path(key).stat().st_mode & 0o777
        shown = _handshake(certificate, key, None)
    except (ssl.SSLError, ssl.CertificateError) as error:
        return f"{certificate} and {key}: {getattr(error, 'verify_message', '') or error.reason or error}"
    except OSError as error:
        return f"{certificate} or {key} cannot be read: {error.strerror}"
    name_matches = None
    if name is not None:
        try:
            _handshake(certificate, key, name)
        except ssl.CertificateError:
            name_matches = False
        else:
            name_matches = True
    alternatives: Any = shown.get("subjectAltName", ())  # pairs of kind and name
    names = tuple(str(name) for _, name in alternatives)
    seconds = ssl.cert_time_to_seconds(str(shown["notAfter"]))
    return CertificateDetails(
        names=names, not_after=dt.datetime.fromtimestamp(seconds, dt.UTC), key_mode=key_mode, name_matches=name_matches
    )


def _handshake(certificate: str, key: str, name: str | None) -> "ssl._PeerCertRetDictType":
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key, password="")
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_verify_locations(cafile=certificate)
    client_context.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    client_context.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MAX_ROUNDS):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        peer = client.getpeercert() if client.version() else None
        if peer:
            return peer
    raise ssl.SSLError(1, "the handshake did not complete")
