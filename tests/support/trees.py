"""Machines as text: a folder tree in one reviewable file.

    # a comment
    /proc/loadavg = 0.10 0.20 0.30 1/100 4242
    /etc/os-release
    | NAME="Debian"
    /sys/class/net/eth0 -> ../../devices/pci0000:00/net/eth0
    /run/systemd/system/

A file with ` = ` has one line with a newline. `| ` adds lines to the file above. `␀` is a NUL.
"""

from pathlib import Path


def plant(tree: str, root: Path) -> None:
    """Create the tree under `root`."""
    contents: dict[Path, list[str]] = {}
    current: Path | None = None
    for line in tree.splitlines():
        if line.startswith("|"):
            assert current is not None, f"{line!r} belongs to no file"
            contents[current].append(line[2:] + "\n")
        elif line.startswith("/"):
            current = None
            path, arrow, target = line.partition(" -> ")
            if arrow:
                _place(root, path).symlink_to(target)
            elif line.endswith("/"):
                _place(root, line.rstrip("/")).mkdir(exist_ok=True)
            else:
                path, equals, value = line.partition(" = ")
                current = _place(root, path)
                contents[current] = [value + "\n"] if equals else []
        else:
            assert not line or line.startswith("#"), f"{line!r} is not a line of a tree"
    for file, lines in contents.items():
        file.write_bytes("".join(lines).replace("␀", "\0").encode("utf-8", errors="surrogateescape"))


def _place(root: Path, path: str) -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
