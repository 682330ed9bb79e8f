"""Listener of a running hub, as reported in its state folder."""

from pathlib import Path

from gpufleet.hub.receive.listener import Listener, clear_listener, read_listener, reported_listener

LISTENER = Listener(address="[::1]:8470", tls=True, tokens=False)


def test_listener_is_reported_while_the_context_is_open(tmp_path: Path) -> None:
    assert read_listener(tmp_path) is None
    with reported_listener(tmp_path, LISTENER):
        assert read_listener(tmp_path) == LISTENER
    assert list(tmp_path.iterdir()) == []


def test_damaged_or_old_report_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "listener.json").write_text('{"address": ')
    assert read_listener(tmp_path) is None
    clear_listener(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_does_not_stop_the_daemon(tmp_path: Path) -> None:
    with reported_listener(tmp_path / "none", LISTENER):
        assert read_listener(tmp_path / "none") is None
