from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.config.secret_files import TokenFile
from gpufleet.model.errors import ConfigError
from tests.support.authority import put_in_place


def test_token_is_read_again_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  one\n")
    file = TokenFile(str(path))
    assert file.token() == "one"
    put_in_place(path, b"two")  # same length: only the file itself changed
    assert file.token() == "two"
    path.write_text("three\n")
    assert file.token() == "three"


def test_invalid_token_file_is_reported_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "token"
    file = TokenFile(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        file.token()
    for content in (b"", b"\n", b"two parts", b"two\nlines", "zwölf".encode(), b"x" * 600):
        put_in_place(path, content)
        with pytest.raises(ConfigError) as caught:
            file.token()
        assert caught.value.source == str(path)
        assert "token" in caught.value.reason
    put_in_place(path, b"good")
    assert file.token() == "good"
    path.unlink()
    with pytest.raises(ConfigError):
        file.token()


@given(st.binary(max_size=300))
def test_any_file_yields_a_valid_header_value_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("token") / "file"
    path.write_bytes(content)
    try:
        token = TokenFile(str(path)).token()
    except ConfigError:
        return
    assert token.isascii()
    assert token.isprintable()
    assert " " not in token
