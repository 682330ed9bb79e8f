"""What a view for people is, and the words for columns that several have. Pure."""

import msgspec


class Shown(msgspec.Struct, frozen=True):
    """One column of a view: its name, what it is made of, what it says, and whether it is a metric's."""

    name: str
    made_of: str
    help: str
    of_metric: bool = False


class SqlView(msgspec.Struct, frozen=True, kw_only=True):
    """One view.

    Attributes:
        name: as in SQL.
        help: what one row is.
        columns: in order.
        source: what stands after FROM.
        metrics: which columns of metrics it has, for the reference: they are too many to be listed there.
    """

    name: str
    help: str
    columns: tuple[Shown, ...]
    source: str
    metrics: str = ""


WORDS = {
    "cluster": "id of the cluster",
    "machine": "the hub's id of the machine",
    "view": "key of the device's view, such as `gpu/GPU-…`; empty for the machine itself",
    "reader": "who read it",
    "lane": "schedule that it is read on: static, fast, slow, event",
    "provenance": "who measured: `host_local_probe`, `slice_guest`, `imported`, …",
    "measured_at": "when it was measured, by the machine's clock",
    "received_at": "when the hub received it, or the first relay before it, by the hub's clock",
    "reported_at": "when it was last told, by the hub's clock",
    "epoch": "run of the sender's sequence numbers",
    "seq": "number of the batch in it",
    "driver_session": "another number is another start of the driver: counters begin again",
    "kind": "`gpu`, `mig` or `vgpu`",
    "side": "`host`, `guest`, `vgpu_host` or `pci_only`",
    "uuid": "of the device, or NULL",
    "pci_address": "or NULL",
    "instance": "of a vGPU, or NULL",
    "parent": "key of the view that it is a part of, or NULL",
    "index": "the driver's position number when last told; it names nothing",
    "metric": "name in the catalogue",
    "labels": "values of the metric's dimensions, in their order",
    "text": "what it says",
    "since": "when it was first measured so",
    "state": "how the reader was doing",
    "interval_seconds": "how often it reads",
    "last_attempt": "or NULL",
    "last_success": "or NULL",
    "duration_seconds": "of the last pass",
    "failures": "in a row",
    "error_class": "or empty",
    "last_error": "in its own words, or empty",
    "total": "processes that there were; more than are listed where the agent cut the list",
}


def same(names: str) -> tuple[Shown, ...]:
    """Return columns that are what the table has, by their names with blanks between them."""
    return tuple(Shown(name, f"`{name}`", WORDS[name]) for name in names.split())


def escaped(text: str) -> str:
    """Return a text as it stands in a literal."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
