"""Private authority of a hub: its certificates are accepted by strict clients, and its keys are private."""

import ssl
import stat
from pathlib import Path

import pytest

from gpufleet.cli.authority import check_names, create_authority, issue_certificate
from gpufleet.cli.options import CommandError
from gpufleet.doctor.hub.facts import CertificateDetails
from gpufleet.doctor.hub.gather import inspect_certificate

NAMES = ("hub.example", "gpu_hub", "10.0.0.7", "::1")


def test_issued_certificate_is_valid_for_each_name(tmp_path: Path) -> None:
    ca, ca_key, certificate, key = (tmp_path / name for name in ("ca", "ca.key", "crt", "key"))
    create_authority(ca, ca_key, "gpufleet CA of a/b\nc")
    issue_certificate(ca, ca_key, NAMES, certificate=certificate, key=key)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (ca_key, key)} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca", "ca.key", "crt", "key"]
    for name in NAMES:
        assert shake(ca, certificate, key, name)
        found = inspect_certificate(str(certificate), str(key), name)
        assert isinstance(found, CertificateDetails)
        assert found.name_matches, name
    assert not shake(ca, certificate, key, "other.example")


def shake(ca: Path, certificate: Path, key: Path, name: str) -> bool:
    """Return whether a client that verifies strictly accepts the certificate under a name."""
    client_context = ssl.create_default_context(cafile=ca)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return client.version() is not None


@pytest.mark.parametrize("name", ["", "a b", "hub:8470", "a,DNS:b", "https://hub", "a\nb", "-x", "a" * 300])
def test_name_that_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(CommandError):
        check_names([name])


def test_missing_openssl_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="--certificate"):
        create_authority(tmp_path / "ca", tmp_path / "key", "x")
