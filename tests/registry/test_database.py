"""Registry files that are empty, deleted or replaced."""

from pathlib import Path

import pytest

from gpufleet.model.errors import RegistryError
from gpufleet.registry.database import Database
from gpufleet.registry.sql import SqlRegistry


def test_file_of_0_bytes_is_rejected_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "registry.sqlite"
    file.touch()
    with pytest.raises(RegistryError):
        Database.open(f"sqlite:///{file}")
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_size == 0


@pytest.mark.parametrize("replaced", [False, True])
def test_deleted_file_is_not_written(tmp_path: Path, replaced: bool) -> None:
    file = tmp_path / "registry.sqlite"
    registry = SqlRegistry.open(f"sqlite:///{file}")
    registry.migrate()
    registry.load()
    registry.register_clusters(["a"], 1)
    file.rename(tmp_path / "moved")
    if replaced:
        file.touch()
    with pytest.raises(RegistryError):
        registry.register_clusters(["b"], 1)
    file.unlink(missing_ok=True)
    (tmp_path / "moved").rename(file)
    registry.register_clusters(["c"], 1)
    assert [one.id for one in registry.clusters()] == ["a", "c"]
    registry.close()
