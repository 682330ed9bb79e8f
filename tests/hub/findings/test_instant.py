from pathlib import Path

from gpufleet.hub.findings.instant import disk_free_ratio


def test_fullest_file_system_counts_and_a_missing_one_does_not(tmp_path: Path) -> None:
    found = disk_free_ratio([tmp_path, tmp_path / "missing"])
    assert found is not None
    assert 0 < found <= 1
    assert disk_free_ratio([tmp_path / "missing"]) is None
