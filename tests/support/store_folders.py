"""Folders of embedded stores with empty tables, copied instead of created.

Creating the tables takes several seconds of processor time, a copy takes milliseconds.
"""

import fcntl
import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "empty-store"

_MAKE = """
import sys
from gpufleet.stores.clickhouse import ClickHouseStore
store = ClickHouseStore.open(f"chdb://{sys.argv[1]}")
store.migrate()
store.close()
"""


def copy_empty_store(folder: Path) -> None:
    """Make `folder` an embedded store with the tables of this build and no rows."""
    shutil.copytree(_template(), folder, symlinks=True, dirs_exist_ok=True)


@functools.cache
def _template() -> Path:
    """Return the folder to copy: one per version of the store's code, the catalogue and the engine."""
    content = hashlib.sha256(f"{version('chdb')} {sys.version}".encode())
    for package in ("stores", "model"):
        for path in sorted((ROOT / "src" / "gpufleet" / package).rglob("*.py")):
            content.update(path.read_bytes())
    target = CACHE / content.hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the same run wait for the first one
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as made:
                store = Path(made) / "store"
                subprocess.run([sys.executable, "-c", _MAKE, store], check=True, timeout=300)
                store.rename(target)
    return target
