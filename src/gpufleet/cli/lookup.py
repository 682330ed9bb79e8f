"""Lookup of the cluster, machine, GPU or finding that an option of a hub query names."""

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from gpufleet.cli.fetch import Access, HttpError, get
from gpufleet.cli.options import CommandError
from gpufleet.model.api.answer import GpuRecord, MachineRecord
from gpufleet.model.view import ViewKind, normalise_pci_address

NOT_FOUND = 404

FINDING_DIGITS = 24
"""Digits of the id of a finding."""

SHORT_FINDING_DIGITS = 8
"""Digits of the id of a finding in tables."""

MIN_FINDING_DIGITS = 4

CLOSED_DAYS = 7
"""Age up to which closed findings are found by the first digits of their ids."""

FORBIDDEN = (401, 403)

SHORT_DIGITS = 8
"""Digits of a UUID in a short id, unless two ids of a list have the same."""

_UUID = re.compile(r"(?P<start>(?:GPU-|MIG-)?)(?P<digits>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")

_KINDS = frozenset(ViewKind)
_KIND_BY_START = {"GPU-": ViewKind.GPU, "MIG-": ViewKind.MIG, "": ViewKind.VGPU}

_LENGTHS = (SHORT_DIGITS, 13, 18, 23)
"""Lengths of short forms of a UUID, each ending before a hyphen."""


def short_ids(ids: list[str]) -> dict[str, str]:
    """Return the short form of each id: the first digits of a UUID, as many as distinguish it. Others are unchanged."""
    found = {one: one for one in ids}
    pending = [one for one in found if _UUID.fullmatch(one)]
    for length in _LENGTHS:
        by_short: dict[str, list[str]] = {}
        for one in pending:
            by_short.setdefault(_shortened(one, length), []).append(one)
        found.update({several[0]: short for short, several in by_short.items() if len(several) == 1})
        pending = [one for several in by_short.values() if len(several) > 1 for one in several]
    return found


def short_id(text: str) -> str:
    """Return the short form of one id."""
    return short_ids([text])[text]


def _shortened(text: str, length: int) -> str:
    found = _UUID.fullmatch(text)
    assert found is not None
    return found["start"] + found["digits"][:length]


def device_id(view: str, machine: str) -> str:
    """Return a name of a device that every command accepts: its UUID, or its machine and PCI address."""
    kind, _, name = view.partition("/")
    address = name.removeprefix("pci/")
    if name == address:
        return name or kind
    return f"{machine}/{address.removeprefix('0000:')}"


def find_view(hub: str, text: str, access: Access, machine: str | None = None) -> tuple[str, str | None]:
    """Return the key of the view that the text stands for, and its machine if the key is not unique without it.

    The hub is queried only for short ids: UUIDs, PCI addresses and keys are complete.

    Args:
        hub: base URL.
        text: of the command line.
        access: to the hub.
        machine: id or name of the machine that has the device; None for any.

    Raises:
        HttpError: if the hub knows no such device, or several.
        CommandError: if another machine has it.
    """
    kind, _, rest = text.partition("/")
    if text == "machine" or (kind in _KINDS and (_UUID.fullmatch(rest) or rest.startswith(("pci/", "instance/")))):
        return text, None
    if found := _UUID.fullmatch(text):
        return f"{_KIND_BY_START[found['start']]}/{text}", None
    if address := _address(text):
        return f"{ViewKind.GPU}/pci/{address}", None
    record = _fetch_gpu_of(hub, text, access, machine)
    key = record.device.id.split("/", 2)[2]
    return key, None if record.device.uuid else record.device.machine


def find_allocated_device(hub: str, text: str, access: Access, cluster: str, machine: str | None) -> str:
    """Return the UUID or PCI address of the device that the text stands for.

    The hub is queried only for short ids. A UUID or PCI address may be of a device that the hub does not know yet.

    Args:
        hub: base URL.
        text: of the command line.
        access: to the hub.
        cluster: of the allocation's target.
        machine: id or name of the machine that is the target; None if the target is not a machine.

    Raises:
        HttpError: if the hub knows no such device, or several.
        CommandError: if another cluster or machine has it, or it has neither UUID nor PCI address.
    """
    if re.fullmatch(_UUID.pattern, text, re.IGNORECASE) or _address(text):
        return text
    record = _fetch_gpu_of(hub, text, access, machine)
    if record.cluster != cluster:
        raise CommandError(f"{text} is a device of cluster {record.cluster}, not of {cluster}: check --cluster")
    name = record.device.uuid or record.device.pci_address
    if name is None:
        raise CommandError(f"{text} has neither UUID nor PCI address: leave out --device, or list another device")
    return name


def _fetch_gpu_of(hub: str, text: str, access: Access, machine: str | None) -> GpuRecord:
    record = fetch_gpu(hub, text, access)
    if machine not in (None, record.device.machine, record.node):
        owner = f"{record.node} ({record.device.machine})"
        raise CommandError(f"{text} is a device of machine {owner}, not of {machine}: check the device or the machine")
    return record


def fetch_gpu(hub: str, text: str, access: Access) -> GpuRecord:
    """Return the device with this id, UUID, prefix of a UUID, or machine and PCI address.

    Raises:
        HttpError: if the hub knows no such device, or several.
        CommandError: if the server is not a hub of this version.
    """
    try:
        return msgspec.json.decode(get(hub, f"/v1/gpus/{quote(text)}", access), type=GpuRecord)
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a hub of this version: {error}") from error


def check_names(hub: str, cluster: str | None, machine: str | None, access: Access) -> None:
    """Check that the cluster and the machine of an empty answer exist.

    A token that may not read them is not an error.

    Raises:
        CommandError: if one of them does not exist, with similar names; or the machine is in another cluster.
    """
    if cluster is not None:
        _fetch_known(hub, f"/v1/clusters/{quote(cluster, safe='')}", access)
    if machine is not None:
        found = _fetch_known(hub, f"/v1/machines/{quote(machine, safe='')}", access)
        if found is None or cluster is None:
            return
        record = msgspec.convert(found, MachineRecord)
        if record.cluster != cluster:
            raise CommandError(f"machine {machine} is in cluster {record.cluster}, not in {cluster}")


def find_finding(hub: str, text: str, access: Access) -> str:
    """Return the id of the finding whose id the text is, or begins with.

    The hub is queried only for short ids: first for findings that are not closed, then for those of the last days.

    Raises:
        CommandError: if no finding has such an id, or several.
    """
    if re.fullmatch(f"[0-9a-f]{{{FINDING_DIGITS}}}", text):
        return text
    if not re.fullmatch(f"[0-9a-f]{{{MIN_FINDING_DIGITS},{FINDING_DIGITS}}}", text):
        raise CommandError(f"{text!r} is not the id of a finding: give at least {MIN_FINDING_DIGITS} of its digits")
    since = (dt.datetime.now(dt.UTC) - dt.timedelta(days=CLOSED_DAYS)).isoformat().replace("+00:00", "Z")
    for path in ("/v1/findings?state=open&state=unknown", f"/v1/findings?state=closed&since={since}"):
        found = [id_ for id_ in _finding_ids(hub, path, access) if id_.startswith(text)]
        if len(found) > 1:
            raise CommandError(f"{text} is the start of several ids: use one of {', '.join(sorted(found)[:10])}")
        if found:
            return found[0]
    raise CommandError(
        f"no open finding, and none closed in the last {CLOSED_DAYS} days, has an id that starts with {text}: "
        "give the whole id"
    )


class _FindingIds(msgspec.Struct):
    class Item(msgspec.Struct):
        id: str

    items: list[Item]
    next: str | None


def _finding_ids(hub: str, path: str, access: Access) -> Iterator[str]:
    cursor = ""
    while True:
        try:
            page = msgspec.json.decode(get(hub, f"{path}{cursor}", access), type=_FindingIds)
        except msgspec.DecodeError as error:
            raise CommandError(f"{hub} does not respond like a hub of this version: {error}") from error
        yield from (one.id for one in page.items)
        if page.next is None:
            return
        cursor = f"&cursor={quote(page.next)}"


def _fetch_known(hub: str, path: str, access: Access) -> Any:
    try:
        return msgspec.json.decode(get(hub, path, access))
    except HttpError as error:
        if error.status == NOT_FOUND:
            raise
        return None  # forbidden, or several machines have the name
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a hub of this version: {error}") from error


def _address(text: str) -> str | None:
    try:
        return normalise_pci_address(text)
    except ValueError:
        return None
