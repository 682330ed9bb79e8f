"""Push configuration: URLs, credentials, labels, and the headers file."""

import os
from pathlib import Path

import pytest

from gpufleet.config.load import InvalidValueError
from gpufleet.config.push import OtlpConfig, RemoteWriteConfig
from gpufleet.config.secret_files import HeadersFile
from gpufleet.model.errors import ConfigError


def test_nothing_is_pushed_by_default() -> None:
    assert OtlpConfig().endpoint is None
    assert RemoteWriteConfig().url is None


@pytest.mark.parametrize(
    "url", ["collector:4318", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x#y"]
)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidValueError):
        OtlpConfig(endpoint=url)
    with pytest.raises(InvalidValueError):
        RemoteWriteConfig(url=url)


def test_url_may_have_a_query() -> None:
    assert RemoteWriteConfig(url="http://vm:8428/api/v1/write?extra_label=a=b").url


def test_credentials_require_https_or_insecure() -> None:
    for token, headers in (("/t", None), (None, "/h")):
        with pytest.raises(InvalidValueError) as caught:
            OtlpConfig(endpoint="http://collector:4318", token_file=token, headers_file=headers)
        assert caught.value.key == "endpoint"
        for endpoint in ("http://127.0.0.1:4318", "https://collector:4318"):
            OtlpConfig(endpoint=endpoint, token_file=token, headers_file=headers)
        OtlpConfig(endpoint="http://collector:4318", insecure=True, token_file=token, headers_file=headers)


def test_labels_and_attributes_are_parsed() -> None:
    assert RemoteWriteConfig(labels=("team=ml", "site=a=b")).label_pairs == {"team": "ml", "site": "a=b"}
    assert OtlpConfig(attributes=("deployment.environment.name=prod",)).attribute_pairs == {
        "deployment.environment.name": "prod"
    }
    for labels in (("team",), ("=x",), ("team=",), ("a.b=c",), ("__name__=x",), ("a=1", "a=2"), ("a=\n",)):
        with pytest.raises(InvalidValueError, match="labels"):
            RemoteWriteConfig(labels=labels)


def test_certificate_and_key_are_required_together() -> None:
    with pytest.raises(InvalidValueError) as caught:
        OtlpConfig(certificate="/c")
    assert caught.value.key == "certificate"
    with pytest.raises(InvalidValueError) as caught:
        RemoteWriteConfig(key="/k")
    assert caught.value.key == "key"


def test_headers_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_bytes(b"# comment\n\nX-Api-Key:  a b \r\nX-Scope-OrgID: 7\n")
    file = HeadersFile(str(path))
    assert file.headers() == {"X-Api-Key": "a b", "X-Scope-OrgID": "7"}
    fresh = tmp_path / "new"
    fresh.write_text("A: b\n")
    fresh.replace(path)
    assert file.headers() == {"A": "b"}


@pytest.mark.parametrize(
    "content",
    [b"no header", b"A:", b"A: b\x00c", b"A b: c", "A: é".encode(), b"Host: x", b"Content-Type: x", b"x" * 20_000],
)
def test_invalid_headers_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "headers"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        HeadersFile(str(path)).headers()


def test_missing_headers_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=os.strerror(2)):
        HeadersFile(str(tmp_path / "none")).headers()
