"""The lock file: packages that an installation contains."""

import tomllib

from tests.support.uv import ROOT

UNUSED = {"faker", "pandas", "polyfactory", "rich-click"}
"""Requirements of libraries for features that are not used."""


def test_lock_file_has_no_unused_packages() -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert UNUSED & {package["name"] for package in packages} == set()
