"""Fake `nvidia-smi` for guests: POSIX shell and awk over files made from captures.

A guest of `tests/support/sshd.py` runs as another user, who may not be able to read this checkout.
"""

import re
from pathlib import Path
from typing import Protocol

from tests.fakes.nvidia_smi.standin import scenario_of_capture, xml

_PROGRAM = r"""#!/bin/sh
cd "$FAKE_FOLDER/smi" || exit 1
[ -f hang ] && exec sleep 600
[ -f flood ] && exec cat /dev/zero
[ -f message ] && { cat message; exit "$(cat code)"; }
case $1 in
--help-query-gpu) cat help ;;
-q) cat log ;;
-L) cat list ;;
--query-gpu=*) exec awk -F '\t' -v fields="${1#*=}" '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; n = split(fields, names, ","); next }
    { line = ""; for (i = 1; i <= n; i++) line = line (i > 1 ? ", " : "") $(at[names[i]]); print line }' rows ;;
esac
"""

NAME = "NVIDIA H100 80GB HBM3"


def uuid_of(guest: int, gpu: int) -> str:
    """Return the UUID of a guest's GPU."""
    return f"GPU-{guest:08x}-0000-0000-0000-{gpu:012x}"


class Machine(Protocol):
    """Machine on which programs can be installed."""

    folder: Path

    def program(self, name: str, text: str) -> None:
        """Install a program."""
        ...


class GuestSmi:
    """Output of a guest's nvidia-smi: the files of its folder `smi`."""

    def __init__(self, guest: Machine, *, number: int = 1, gpus: int = 1) -> None:
        self._folder = guest.folder / "smi"
        self._folder.mkdir()
        self._number = number
        scenario = scenario_of_capture("capture-h200__590.48.01.txt", "load")
        self._row: dict[str, str] = scenario["rows"][0]
        self._put("help", scenario["help"])
        self.show(gpus)
        guest.program("nvidia-smi", _PROGRAM)

    def show(self, gpus: int, **values: str) -> None:
        """Show this number of GPUs; `values` are fields with `_` for `.`."""
        rows = []
        for gpu in range(gpus):
            row = {**self._row, "uuid": uuid_of(self._number, gpu), "index": str(gpu), "count": str(gpus), "name": NAME}
            row["pci.bus_id"] = f"00000000:{gpu + 1:02X}:00.0"
            row |= {name: value for name in row for field, value in values.items() if name.replace(".", "_") == field}
            rows.append(row)
        names = list(self._row)
        table = ["\t".join(names), *("\t".join(row[name] for name in names) for row in rows)]
        self._put("rows", "\n".join(table) + "\n")
        self._put("log", self._log(rows))
        self._put("list", "".join(f"GPU {i}: {NAME} (UUID: {row['uuid']})\n" for i, row in enumerate(rows)))

    def fail_with(self, message: str, code: int) -> None:
        """Fail on every call with this message and exit code."""
        self._put("code", str(code))
        self._put("message", message)

    def do(self, what: str) -> None:
        """Hang or flood on every call (`hang`, `flood`)."""
        self._put(what, "")

    def heal(self) -> None:
        """Remove every fault."""
        for name in ("message", "code", "hang", "flood"):
            (self._folder / name).unlink(missing_ok=True)

    def _log(self, rows: list[dict[str, str]]) -> str:
        document = xml("xml-h100.xml")
        parts = re.split(r"(?=\t<gpu id=)|(?=</nvidia_smi_log>)", document)
        gpus = []
        for row, part in zip(rows, parts[1:-1], strict=False):
            block = re.sub(r'<gpu id="[^"]*"', f'<gpu id="{row["pci.bus_id"]}"', part)
            block = re.sub(r"<pci_bus_id>[^<]*", f"<pci_bus_id>{row['pci.bus_id']}", block)
            block = re.sub(r"<minor_number>[^<]*", f"<minor_number>{row['index']}", block)
            gpus.append(re.sub(r"<uuid>[^<]*", f"<uuid>{row['uuid']}", block))
        head = re.sub(r"<attached_gpus>\d+", f"<attached_gpus>{len(rows)}", parts[0])
        return re.sub(r"<driver_version>[^<]*", f"<driver_version>{self._row['driver_version']}", head) + "".join(
            [*gpus, parts[-1]]
        )

    def _put(self, name: str, text: str) -> None:
        fresh = self._folder / f".{name}"
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.replace(self._folder / name)
