"""uv, which builds and installs packages as a user does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def find() -> Path:
    """Return the path of uv: the one of this checkout, else the machine's."""
    own = ROOT / ".tools" / "bin" / "uv"
    found = own if own.exists() else Path(shutil.which("uv") or "")
    assert found.is_file(), "uv is missing: run `make setup`"
    return found


def uv(*arguments: object, **env: str) -> None:
    """Run uv in the repository. Fail with its error output."""
    done = subprocess.run(
        [find(), *map(str, arguments), "--quiet"],
        cwd=ROOT,
        env={**os.environ, "UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
