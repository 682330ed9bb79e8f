"""Private certificate authority of a hub, created with the `openssl` command.

Keys are written to files by openssl itself. They never appear in arguments or output.
"""

import ipaddress
import os
import re
import secrets
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpufleet.cli.options import CommandError

CA_DAYS = 3650
CERTIFICATE_DAYS = 825
"""Validity of the hub's certificate. Some TLS clients reject longer ones."""

TIMEOUT_SECONDS = 60.0

_DNS_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})?)*")

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

_CA = """[req]
prompt = no
distinguished_name = name
x509_extensions = extensions
[name]
CN = {title}
[extensions]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""

_SERVER = """[req]
prompt = no
distinguished_name = name
[name]
CN = gpufleet hub
[extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""


def create_authority(certificate: Path, key: Path, title: str) -> None:
    """Write the certificate and key of a new authority. Raises CommandError."""
    with tempfile.TemporaryDirectory(dir=key.parent) as folder:
        config = Path(folder, "ca.conf")
        config.write_text(_CA.format(title=re.sub(r"[^A-Za-z0-9 ._-]", "-", title)[:60]))
        _openssl(
            *("req", "-x509", "-new", *_NEW_KEY, "-config", str(config), "-days", str(CA_DAYS)),
            *("-keyout", str(key), "-out", str(certificate)),
        )


def issue_certificate(
    ca_certificate: Path, ca_key: Path, names: Sequence[str], *, certificate: Path, key: Path
) -> None:
    """Write a certificate for these names and addresses, and its key. Raises CommandError."""
    with tempfile.TemporaryDirectory(dir=key.parent) as folder:
        config, request = Path(folder, "server.conf"), Path(folder, "server.csr")
        config.write_text(_SERVER.format(names=", ".join(_alternative(name) for name in names)))
        _openssl("req", "-new", *_NEW_KEY, "-config", str(config), "-keyout", str(key), "-out", str(request))
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(ca_certificate), "-CAkey", str(ca_key)),
            *("-set_serial", f"0x{secrets.randbits(127):x}", "-days", str(CERTIFICATE_DAYS)),
            *("-extfile", str(config), "-extensions", "extensions", "-out", str(certificate)),
        )


def check_names(names: Sequence[str]) -> None:
    """Check that each is a DNS name or an IP address. Raises CommandError."""
    for name in names:
        _alternative(name)


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        if _DNS_NAME.fullmatch(name):
            return f"DNS:{name}"
    raise CommandError(f"{name!r} is not a DNS name or an IP address: write it as clients do, without a port")


def _openssl(*arguments: str) -> None:
    environment = {**os.environ, "OPENSSL_CONF": os.devnull}
    try:
        done = subprocess.run(  # noqa: S603 - arguments are paths and constants
            ["openssl", *arguments],  # noqa: S607 - the administrator's own
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            env=environment,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(
            "the command `openssl` is not installed: install it, or set your own --certificate and --key"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"openssl {arguments[0]} failed: {error}") from error
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
        raise CommandError(f"openssl {arguments[0]} failed: {last[0]}")
