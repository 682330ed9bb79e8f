"""Chromium for tests of pages."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.support.peers import environment
from tests.support.waiting import PATIENCE

FONTS = {"sans-serif": "DejaVu Sans", "system-ui": "DejaVu Sans", "monospace": "DejaVu Sans Mono"}


@contextlib.contextmanager
def running_chromium(program: Path) -> Iterator[Browser]:
    """Run a Chromium without a window."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox"],  # tests also run as root
            env={**os.environ, **environment("chromium"), **_fonts(program)},
            timeout=60_000 * PATIENCE,
        )
        yield started
        started.close()


def _fonts(program: Path) -> dict[str, str]:
    """Return the variable that limits an unpacked Chromium to its own fonts: pages look the same on every system."""
    folder = program.parents[3]
    fonts = folder / "usr" / "share" / "fonts"
    if not fonts.is_dir() or folder == Path("/"):
        return {}
    file = folder / "fonts.conf"
    aliases = "".join(
        f"<alias><family>{generic}</family><prefer><family>{name}</family></prefer></alias>"
        for generic, name in FONTS.items()
    )
    cache = f"<cachedir>{folder / 'fonts.cache'}</cachedir>"
    content = f"<fontconfig><dir>{fonts}</dir>{cache}{aliases}</fontconfig>\n"
    if not file.is_file() or file.read_text() != content:
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(content)
        fresh.replace(file)
    return {"FONTCONFIG_FILE": str(file)}
