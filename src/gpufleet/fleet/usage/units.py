"""Physical GPUs behind the views of all observers: each counts once. Pure.

- Two views with the same UUID, or with the same PCI address on a machine, are the same GPU.
- A guest can report any UUID. Its view is the GPU of another machine only if its host or another guest of its host
  reported the UUID. If a host reported the GPU, the view is a claim: it does not name the GPU, nor give the share of a
  MIG device that the host reported.
- A GPU that its host passed through to a guest is identified by the UUID that the host read before.
- A view known only by its list position counts only if its machine shows no identified view, or as one that left.
- A MIG device is a part of its GPU, also after it was removed. A later one at its place has its UUID, and can have
  another share: the driver derives UUIDs from places.
- A vGPU instance and the GPU seen by its guest are the same device, by the instance's UUID. It counts as a device of
  its own, since its share of the GPU is not reported.
- GPUs that a host could never read, and GPUs that only its guests see, are the same GPUs. The pairing is known only if
  there is a single one.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.fleet.readings import device_views, known_views
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, View, ViewKind, bare_uuid

WHOLE = ""
"""Name of the part that is the whole unit."""

Place = tuple[str, str]
"""Machine, and key of a view on it."""


_PROFILE = re.compile(r"(?:([1-9])c\.)?([1-9])g\.", re.ASCII)

SIZES = ("mig_compute_slices", "mig_gpu_slices", "gpu_mig_devices_max")
"""Metrics of a MIG device, and of its GPU, that give its share."""


class MigView(NamedTuple):
    """View of a MIG device: machine, keys of the device and of its GPU, and provenance of its newest report."""

    machine: str
    key: str
    gpu: str
    provenance: Provenance


class UnitPart(msgspec.Struct):
    """MIG device.

    Attributes:
        ratio: its newest known share of its GPU; None if not reported.
        views: its views.
        reported: its views whose reports of earlier times can give the share.
        most: maximum number of MIG devices of its GPU; None if not reported.
        changes: times since which it had a share, nanoseconds since 1970 and ascending; empty if it never changed.
    """

    ratio: float | None
    views: tuple[Place, ...]
    reported: tuple[MigView, ...] = ()
    most: float | None = None
    changes: tuple[tuple[int, float], ...] = ()

    def ratio_at(self, at: int) -> float | None:
        """Return its share at an instant. Before the first report, it is that of the first report."""
        begun = [ratio for since, ratio in self.changes if since <= at]
        return begun[-1] if begun else self.changes[0][1] if self.changes else self.ratio


class UnitPlacement(NamedTuple):
    """Instance type and region of a GPU's machine since a time, nanoseconds since 1970; None if unknown."""

    since: int
    instance_type: str | None
    region: str | None


class PhysicalUnit(msgspec.Struct):
    """Physical GPU.

    Attributes:
        cluster: its cluster.
        id: unique in the cluster.
        views: its views on all sides.
        claims: those of guests, if a host reported the GPU, too.
        model: as the driver names it now, or None.
        parts: its MIG devices, by UUID or key.
        placements: instance types and regions of its machines, in order of time.
        models: times since which it had a name, nanoseconds since 1970 and ascending; empty if they are not read.
    """

    cluster: str
    id: str
    views: tuple[Place, ...]
    model: str | None
    parts: dict[str, UnitPart]
    placements: tuple[UnitPlacement, ...] = ()
    models: tuple[tuple[int, str | None], ...] = ()
    claims: frozenset[Place] = frozenset()

    def model_at(self, at: int) -> str | None:
        """Return the name at an instant, nanoseconds since 1970. Before the first report, it is that of the first."""
        begun = [name for since, name in self.models if since <= at]
        return begun[-1] if begun else self.models[0][1] if self.models else self.model

    def placed_at(self, at: int) -> UnitPlacement:
        """Return its placement at an instant, nanoseconds since 1970."""
        return next((one for one in reversed(self.placements) if one.since <= at), UnitPlacement(0, None, None))


class PhysicalUnits:
    """Physical GPUs of machines of a cluster."""

    def __init__(
        self,
        cluster: str,
        stored: Mapping[str, Sequence[StoredSample]],
        left: Collection[Place] = (),
        guests: Mapping[str, Collection[str]] = {},
    ) -> None:
        """Take the newest samples of every machine by id.

        `left` are GPUs that moved to another machine or were known by index only, and vGPU instances that may have
        ended. `guests` maps a host to the guests among the machines.
        """
        self._cluster = cluster
        self._left = frozenset(left)
        self._parent: dict[str, str] = {}
        self._current = {machine: device_views(samples) for machine, samples in stored.items()}
        uuids = {view.uuid for views in self._current.values() for view in views.values() if view.uuid}
        views: dict[Place, View] = {}
        for machine, samples in stored.items():
            named = any(view.named and view.kind is ViewKind.GPU for view in self._current[machine].values())
            for key, view in known_views(samples).items():
                is_current = key in self._current[machine]
                was = (machine, key) in self._left or _was_in_slot(view, self._current[machine], uuids)
                was = was or (view.kind is ViewKind.MIG and view.uuid is not None)  # its past stays if it is removed
                is_counted = view.named or not named or (machine, key) in self._left
                if is_counted and (is_current or was):
                    views[machine, key] = view
        hosts = {guest: host for host, inside in guests.items() for guest in inside}
        reported = {(place[0], bare_uuid(view.uuid)) for place, view in views.items() if view.uuid}
        slots = Counter((place[0], view.pci_address) for place, view in views.items() if view.uuid)
        for place, view in views.items():
            host = hosts.get(place[0]) if view.side is Side.GUEST else None
            is_claimed = host is not None and view.uuid is not None and (host, bare_uuid(view.uuid)) not in reported
            is_reused = place in self._left and slots[place[0], view.pci_address] > 1
            for name in _names(place, view, is_reused=is_reused, scope=f"{host}/" if is_claimed else ""):
                self._join(_key(place), name)
        self._of: dict[Place, tuple[str, str]] = {}
        self.by_id: dict[str, PhysicalUnit] = {}
        for place, view in views.items():
            if view.kind is not ViewKind.MIG:
                self._add(place)
        for unit in self.by_id.values():
            claims = frozenset(place for place in unit.views if views[place].side is Side.GUEST)
            if any(views[place].kind is ViewKind.GPU for place in unit.views if place not in claims):
                unit.claims = claims
            named_by = (place for place in unit.views if place not in unit.claims)
            names = (_text(stored[machine], key, "gpu_name") for machine, key in named_by)
            unit.model = next((name for name in names if name), None)
        for place, view in sorted(views.items(), key=lambda item: item[1].side is Side.GUEST):
            if view.kind is ViewKind.MIG:
                self._add_part(place, view, stored[place[0]])
        self._paired: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
        for host, inside in guests.items():
            self._pair_guests(host, frozenset(inside))

    def whole(self, machine: str) -> list[tuple[str, str]]:
        """Return (id, part) of every GPU that a machine has now, and of those that have left it."""
        current = (key for key, view in self._current.get(machine, {}).items() if view.kind is ViewKind.GPU)
        left = sorted(key for of, key in self._left if of == machine and key.startswith(f"{ViewKind.GPU}/"))
        found = self.at((machine, key) for key in (*current, *left))
        unread, inside = self._paired.get(machine, (frozenset(), ()))
        own = [one for one in found if one[0] not in unread]
        return list(dict.fromkeys([*own, *((id_, WHOLE) for id_ in inside)]))

    def at(self, places: Iterable[Place]) -> list[tuple[str, str]]:
        """Return (id, part) of the views at these places; unknown ones are left out."""
        return list(dict.fromkeys(self._of[place] for place in places if place in self._of))

    def held_at(self, place: Place) -> tuple[str, str]:
        """Return (id, part) of the view that a holding names; an unknown view becomes a unit without model."""
        if place not in self._of:
            machine, key = place
            id_, kind = f"held/{_key(place)}", key.partition("/")[0]
            parts = {key: UnitPart(None, (place,))} if kind == ViewKind.MIG else {}
            self.by_id[id_] = PhysicalUnit(self._cluster, id_, () if parts else (place,), None, parts)
            self._of[machine, key] = (id_, key if parts else WHOLE)
        return self._of[place]

    def _pair_guests(self, host: str, inside: Collection[str]) -> None:
        """Replace GPUs that a host cannot read by the same number of GPUs that only its guests see."""
        unread: list[Place] = []
        seen: list[str] = []
        for unit in self.by_id.values():
            machines = {machine for machine, _ in unit.views}
            views = [self._current[machine].get(key) for machine, key in unit.views]
            if machines == {host} and all(view and view.side is Side.PCI_ONLY and not view.uuid for view in views):
                unread += unit.views
            elif machines and machines <= set(inside) and any(view and view.kind is ViewKind.GPU for view in views):
                seen.append(unit.id)
        if not seen or len(seen) > len(unread):
            return  # its guests may have other GPUs, and the pairing is unknown
        given = sorted(unread)[-len(seen) :]
        self._paired[host] = frozenset(self._of[place][0] for place in given), tuple(sorted(seen))
        if len(seen) == len(unread) == 1:
            self._of[given[0]] = (seen[0], WHOLE)

    def _add(self, place: Place) -> None:
        id_ = self._root(_key(place))
        unit = self.by_id.setdefault(id_, PhysicalUnit(self._cluster, id_, (), None, {}))
        unit.views = (*unit.views, place)
        self._of[place] = (id_, WHOLE)

    def _add_part(self, place: Place, view: View, samples: Sequence[StoredSample]) -> None:
        above = self._of.get((place[0], view.parent or ""))
        id_ = above[0] if above else self._root(_key(place))
        unit = self.by_id.setdefault(id_, PhysicalUnit(self._cluster, id_, (), None, {}))
        name = view.uuid or _key(place)
        own, of_instance, most = (_number(samples, key, metric) for key, metric in size_keys(place[1], view.parent))
        part = unit.parts.setdefault(name, UnitPart(None, ()))
        of_hosts = [machine for machine, _ in part.views if (machine, view.parent) not in unit.claims]
        is_claim = (place[0], view.parent) in unit.claims and bool(of_hosts)
        part.views = (*part.views, place)
        if not is_claim:
            part.ratio = mig_ratio(own, of_instance, most) or part.ratio
            part.most = most or part.most
        if not is_claim and view.parent is not None:
            newest = max(_of_view(samples, place[1]), key=lambda one: one.sample.measured_at)
            part.reported = (*part.reported, MigView(*place, view.parent, newest.sample.provenance))
        self._of[place] = (id_, name)

    def _root(self, name: str) -> str:
        while self._parent.get(name, name) != name:
            name = self._parent[name]
        return name

    def _join(self, one: str, other: str) -> None:
        roots = sorted((self._root(one), self._root(other)))
        self._parent[roots[1]] = roots[0]


def size_keys(device: str, gpu: str | None) -> list[tuple[str | None, str]]:
    """Return (view key, metric) of each of `SIZES` of a MIG device."""
    return list(zip((device, device, gpu), SIZES, strict=True))


def ratio_changes(most: float, profiles: Iterable[tuple[int, str]]) -> tuple[tuple[int, float], ...]:
    """Return the shares of a MIG device over time by its profiles; empty if it has had one size only.

    Args:
        most: maximum number of MIG devices of its GPU.
        profiles: times of report and profiles, such as `1c.2g.20gb`, in order of time.
    """
    slices = [(at, _slices_of(profile)) for at, profile in profiles]
    known = [(at, number) for at, number in slices if number]
    if len({number for _, number in known}) < 2:
        return ()
    return tuple((at, min(1.0, number / most)) for at, number in known)


def _slices_of(profile: str) -> int:
    """Return the compute slices of a profile; 0 if they are unknown."""
    found = _PROFILE.match(profile)
    return 0 if found is None else int(found[1] or found[2])


def mig_ratio(own: float | None, of_instance: float | None, most: float | None) -> float | None:
    """Return the share of its GPU that a MIG device has, given its `SIZES`; None if they do not give it."""
    slices = own or of_instance  # several devices may share the slices of one GPU instance
    return min(1.0, slices / most) if slices and most else None


def _names(place: Place, view: View, *, is_reused: bool, scope: str) -> list[str]:
    """Return further names that identify this unit in the cluster: its slot if that is not reused, and its UUID.

    A UUID identifies it within a scope.
    """
    if view.kind is ViewKind.MIG:
        return []
    names = [f"uuid/{scope}{bare_uuid(view.uuid)}"] if view.uuid else []
    if view.pci_address and view.side in (Side.HOST, Side.PCI_ONLY) and not is_reused:
        names.append(f"pci/{place[0]}/{view.pci_address}")
    return names


def _was_in_slot(view: View, current: Mapping[str, View], uuids: Iterable[str | None]) -> bool:
    """Return whether a former view is the device now in its slot, before it was bound to vfio or first read."""
    now = next((one for one in current.values() if one.pci_address and one.pci_address == view.pci_address), None)
    return now is not None and (view.uuid is None or now.uuid is None or view.uuid not in uuids)


def _key(place: Place) -> str:
    return "/".join(place)


def _text(samples: Sequence[StoredSample], key: str, metric: str) -> str | None:
    found = _value(samples, key, metric)
    return found if isinstance(found, str) else None


def _number(samples: Sequence[StoredSample], key: str | None, metric: str) -> float | None:
    found = _value(samples, key, metric)
    return found if isinstance(found, int | float) else None


def _value(samples: Sequence[StoredSample], key: str | None, metric: str) -> object:
    """Return the newest value of a metric of a view."""
    for one in sorted(_of_view(samples, key), key=lambda one: one.sample.measured_at, reverse=True):
        value = one.sample.values.get(metric)
        if isinstance(value, int | float | str):
            return value
    return None


def _of_view(samples: Sequence[StoredSample], key: str | None) -> list[StoredSample]:
    return [one for one in samples if one.sample.view is not None and one.sample.view.key == key]
