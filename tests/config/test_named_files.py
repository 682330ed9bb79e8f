"""Files and folders that a configuration names, checked for `validate` and for a daemon."""

import os
from pathlib import Path

import pytest

from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import LoadedConfig, resolve
from gpufleet.config.named_files import check_named_files, check_state_folder, folder_error
from tests.support.authority import Authority


def agent(folder: Path, text: str) -> LoadedConfig[AgentConfig]:
    file = folder / "agent.toml"
    file.write_text(text)
    return resolve(AgentConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})


def keys(folder: Path, text: str, *, daemon: bool = False) -> list[str]:
    return [problem.key for problem in check_named_files(agent(folder, text), daemon=daemon)]


def test_certificate_must_fit_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in ("a", "b"):
        authority.issue(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
    pair = '[tls]\ncertificate = "{0}/a.crt"\nkey = "{0}/{1}.key"\n'
    assert keys(tmp_path, pair.format(tmp_path, "a")) == []
    assert keys(tmp_path, pair.format(tmp_path, "b")) == ["tls.certificate"]
    (tmp_path / "b.key").write_text("no key")
    assert keys(tmp_path, pair.format(tmp_path, "b")) == ["tls.certificate"]
    assert keys(tmp_path, pair.format(tmp_path, "none")) == ["tls.key"]


def test_content_of_ca_token_and_headers_is_checked(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("a b\n")
    text = '[hub]\nca = "{0}/bad"\ntoken_file = "{0}/bad"\n[push.otlp]\nheaders_file = "{0}/bad"\n'
    assert keys(tmp_path, text.format(tmp_path)) == ["hub.token_file", "hub.ca", "push.otlp.headers_file"]


def test_files_of_list_entries_are_checked_by_validate_only(tmp_path: Path) -> None:
    text = """
[[readers.exporter]]
name = "first"
url = "http://127.0.0.1:9400/metrics"
[[readers.exporter]]
name = "second"
url = "http://127.0.0.1:9401/metrics"
token_file = "/nowhere/token"
"""
    assert keys(tmp_path, text) == ["readers.exporter[1].token_file"]
    assert keys(tmp_path, text, daemon=True) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_a_problem_of_the_daemon_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    token.chmod(0)
    text = f'token_file = "{token}"\n'
    assert keys(tmp_path, text) == []
    assert keys(tmp_path, text, daemon=True) == ["token_file"]


def test_state_folder_below_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert folder_error(tmp_path / "new" / "deep") == ""
    assert folder_error(tmp_path / "file" / "deep") == "ENOTDIR"
    resolved = agent(tmp_path, f'state = "{tmp_path}/file"\n')
    for daemon in (False, True):
        (problem,) = check_state_folder(resolved, resolved.config.folder, daemon=daemon)
        assert (problem.source, problem.key) == (str(tmp_path / "agent.toml"), "state")
