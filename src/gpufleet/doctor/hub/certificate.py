"""What a hub's certificate and key are worth, found by a TLS handshake in memory: what a client would be shown."""

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

from gpufleet.doctor.hub.facts import Certificate

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME (openssl/x509_vfy.h): an expired certificate is read, and judged by the check."""

_ROUNDS = 10


def look_at_certificate(certificate: str, key: str, name: str | None) -> Certificate | str:
    """Return what the pair is, or what is wrong with it.

    Args:
        certificate: PEM file.
        key: PEM file.
        name: the name or address by which the hub is asked; None when that is not known.
    """
    try:
        key_mode = Path(key).stat().st_mode & 0o777
        shown = _handshake(certificate, key, None)
    except (ssl.SSLError, ssl.CertificateError) as error:
        return f"{certificate} and {key}: {getattr(error, 'verify_message', '') or error.reason or error}"
    except OSError as error:
        return f"{certificate} or {key} cannot be read: {error.strerror}"
    right_name = None
    if name is not None:
        try:
            _handshake(certificate, key, name)
        except ssl.CertificateError:
            right_name = False
        else:
            right_name = True
    alternatives: Any = shown.get("subjectAltName", ())  # pairs of kind and name
    names = tuple(str(name) for _, name in alternatives)
    seconds = ssl.cert_time_to_seconds(str(shown["notAfter"]))
    return Certificate(
        names=names, not_after=dt.datetime.fromtimestamp(seconds, dt.UTC), key_mode=key_mode, right_name=right_name
    )


def _handshake(certificate: str, key: str, name: str | None) -> "ssl._PeerCertRetDictType":
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key, password="")
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.load_verify_locations(cafile=certificate)
    asking.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    asking.check_hostname = name is not None
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there, server_hostname=name)
    server = serving.wrap_bio(there, back, server_side=True)
    for _ in range(_ROUNDS):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        shown = client.getpeercert() if client.version() else None
        if shown:
            return shown
    raise ssl.SSLError(1, "the handshake did not come to an end")
