"""Parser of systemd unit files: keys can be repeated, and values can continue in the next line."""

from pathlib import Path

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"


def unit_values(file: Path, section: str, key: str) -> list[str]:
    """Return every value of a key, in order. An empty value clears the previous ones (systemd.syntax(7))."""
    here, found = "", list[str]()
    for line in file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        name, equals, value = line.partition("=")
        if line.startswith("["):
            here = line.strip("[] ")
        elif equals and not line.startswith(("#", ";")) and (here, name.strip()) == (section, key):
            found = [*found, value.strip()] if value.strip() else []
    return found


def unit_value(file: Path, section: str, key: str) -> str:
    """Return the last value of a key, or an empty text."""
    return next(reversed(unit_values(file, section, key)), "")
