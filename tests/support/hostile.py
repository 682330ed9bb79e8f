"""Snapshots whose texts try to control the terminal."""

from typing import Any

import msgspec

from gpufleet.model.snapshot import Snapshot

HOSTILE = "a\x1b[2J\x07\nb\tc\x9bd\u202ee\u2028f\ud7ff"
"""Escape sequences, controls of C1, a change of direction, a line separator."""

CONTROLS = frozenset("\x1b\x07\t\r\x9b\u202e\u2028")

_TEXTS = frozenset(
    {
        *("name", "namespace", "container", "user", "owner", "detail", "last_error", "state", "version"),
        *("mountpoint", "interface", "resource", "uuid", "instance", "pci_address", "vm_uuid", "reader"),
    }
)
"""Fields with texts of other processes."""


def with_hostile_texts(snapshot: Snapshot, text: str = HOSTILE) -> Snapshot:
    """Return the snapshot with a hostile text appended to each text of another process."""

    def changed(value: Any, field: str = "") -> Any:
        if isinstance(value, dict):
            return {name: changed(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [changed(one, field) for one in value]
        if isinstance(value, str) and (field in _TEXTS or field == "value"):
            return value + text
        return value

    return convert_back(changed(msgspec.to_builtins(snapshot)))


def convert_back(document: Any) -> Snapshot:
    """Return the snapshot of a document, without hostile texts where the type does not permit them."""
    for report in document["readers"]:
        report["state"] = report["state"].partition("a\x1b")[0]
    for device in [*document["devices"], *(one for guest in document["guests"] for one in guest["devices"])]:
        holders = device.get("holders")
        if holders is not None:
            holders["state"] = holders["state"].partition("a\x1b")[0]
    for guest in document["guests"]:
        for path in guest.get("access_paths", ()):
            if "state" in path:
                path["state"] = path["state"].partition("a\x1b")[0]
    return msgspec.convert(document, Snapshot)
