"""Facts about the machines of a cluster. Pure."""

import msgspec
import numpy as np

from gpufleet.fleet.facts import metrics
from gpufleet.fleet.facts.conditions import read_counter
from gpufleet.fleet.facts.devices import ClusterDevices, Texts, key_hashes
from gpufleet.fleet.facts.history import MachineMemory
from gpufleet.fleet.facts.memory import CounterReading, ReaderNumbers
from gpufleet.fleet.facts.newest import NONE, intervals
from gpufleet.fleet.facts.nodes import DRIVER_STATES, ClusterMachines
from gpufleet.fleet.facts.supplied import ClusterInputs
from gpufleet.fleet.readings import MEASURING_LANES
from gpufleet.fleet.rules.counts import class_maxima
from gpufleet.fleet.rules.drift import differs_from_pool
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.catalogue import Lane
from gpufleet.model.device_state import OK
from gpufleet.model.time import NANOS

MAX_CLASSES = 256
"""Maximum number of classes of machines of a cluster with a learned number of GPUs; others have no expectation."""

_DRIVER_WORKS = DRIVER_STATES.index(OK)
_RUNNING = 0
_SUPPLIED = (
    *("unseen_seconds", "interval_seconds", "pci_gpus", "kubernetes_gpus", "allocatable_gpus", "allocated_gpus"),
    *("identity_conflict", "agents", "unresolved_devices", "node_deleted_seconds"),
)


class MachineFactColumns(msgspec.Struct, frozen=True):
    """Facts about the machines of a cluster, in the order of `MachineInputs`.

    Attributes:
        keys: key of each as a subject.
        columns, texts: inputs of the scope machine.
    """

    keys: list[str]
    columns: dict[str, Column]
    texts: dict[str, Texts]


class MachineFactsBuilder:
    """Builds the facts about the machines of a cluster."""

    def __init__(self, inputs: ClusterInputs, machines: ClusterMachines, devices: ClusterDevices, now: int) -> None:
        """Take the cluster.

        Args:
            inputs: what is known about it.
            machines, devices: its machines, and its GPUs with their facts.
            now: nanoseconds since 1970 by the hub's clock.
        """
        self._inputs, self._newest = inputs, inputs.newest
        self._machines, self._devices, self._now = machines, devices, now
        self._count = len(machines.inputs.machines)
        self._row = machines.rows[devices.gpus.machine]  # of each GPU

    def build(
        self, history: MachineMemory, maxima: dict[str, int], readers: ReaderNumbers, second: int
    ) -> tuple[MachineFactColumns, dict[str, int]]:
        """Return the facts, and the largest number of GPUs of each class of machines.

        Args:
            history: history of the cluster's machines.
            maxima: largest numbers so far.
            readers: numbers of readers.
            second: time of the judgement by the memory's clock.
        """
        inputs = self._machines.inputs
        keys = [f"{self._inputs.cluster}/{machine}" for machine in inputs.machines]
        columns = {name: inputs.numbers(name) for name in _SUPPLIED}
        columns |= self._inventory() | self._counts() | self._xids()
        columns |= self._expectations(columns)
        has_gpus = self._has_gpus(columns)
        columns |= self._gpu_values(has_gpus) | self._services(has_gpus)
        models = self._models()
        classes, of_machine = self._classes(models, maxima)
        gpus = columns["nvml_gpus"] + columns["lost_gpus"] + np.nan_to_num(columns["passthrough_gpus"])
        maxima, largest = class_maxima(maxima, of_machine, gpus)
        columns["class_gpus"] = largest - np.nan_to_num(columns["passthrough_gpus"])
        versions = self._text(metrics.DRIVER_VERSION)
        columns["driver_differs"] = differs_from_pool(classes, versions)
        columns["lost_log_messages"] = history.judge(key_hashes(keys), self._lost_messages(readers), second)
        texts = {
            "driver_state": self._driver_states(),
            "driver_version": versions,
            "machine_class": of_machine,
            "last_error": list(inputs.last_errors or [None] * self._count),
        }
        return MachineFactColumns(keys, columns, texts), maxima

    def _inventory(self) -> dict[str, Column]:
        """Return age and interval of the newest static readings."""
        static = np.array([name == Lane.STATIC for name in self._newest.lanes], bool)[self._newest.lane]
        age, interval = self._newest_of(np.flatnonzero(static))
        return {"inventory_age_seconds": age, "inventory_interval_seconds": interval}

    def _gpu_values(self, has_gpus: Column) -> dict[str, Column]:
        """Return age and interval of the newest readings of the GPUs of each machine that show use or condition."""
        newest, gpus = self._newest, self._devices.gpus
        measuring = np.array([Lane(name) in MEASURING_LANES for name in newest.lanes], bool)
        rows = gpus.readings.rows
        age, interval = self._newest_of(rows[measuring[newest.lane[rows]] & ~gpus.retired[gpus.readings.subject]])
        return {"gpu_value_seconds": np.where(has_gpus, age, np.nan), "gpu_interval_seconds": interval}

    def _newest_of(self, rows: Column) -> tuple[Column, Column]:
        """Return age and interval of the newest of these rows of each machine, NaN without any.

        The age is unknown for a guest that does not answer, and for a machine whose values are not stored because its
        clock is ahead.
        """
        newest, row_of = self._newest, self._machines.rows
        rows = rows[row_of[newest.machine[rows]] != NONE]
        rows = rows[np.argsort(newest.received_at[rows], kind="stable")]
        at, interval = np.full(self._count, NONE, np.int64), np.full(self._count, np.nan)
        at[row_of[newest.machine[rows]]] = newest.received_at[rows]
        interval[row_of[newest.machine[rows]]] = intervals(newest)[rows]
        age = (self._now - at) / NANOS
        if self._inputs.ingest_age is not None:
            age = np.array([self._inputs.ingest_age(one) for one in at.tolist()], np.float64)
        age = np.maximum(0, age - self._inputs.flush_seconds)
        is_ahead = False if self._machines.inputs.is_ahead is None else self._machines.inputs.is_ahead
        return np.where((at != NONE) & self._machines.is_answering & ~np.asarray(is_ahead), age, np.nan), interval

    def _counts(self) -> dict[str, Column]:
        """Return the numbers of GPUs that the driver lists, that are lost, that report and that are passed through."""
        devices, inputs = self._devices, self._machines.inputs
        lost = (devices.columns["lost"] == 1) & ~devices.gpus.retired
        listed = devices.is_listed
        current = devices.gpus.is_current & ~devices.gpus.retired
        own = devices.gpus.is_own & ~devices.gpus.retired
        has_driver = ~np.isnan(self._machines.readings.value(metrics.DRIVER_DEVICES)) | (self._sum(listed) > 0)
        state_lost = lost & (listed | (devices.gpus.bus_reason > 0))
        bound = (devices.columns["bound_to_vfio"] == 1) & ~devices.gpus.retired
        supplied, pci = inputs.numbers("passthrough_gpus"), inputs.numbers("pci_gpus")
        known = np.isnan(supplied) & ~np.isnan(pci)
        imported = np.where(self._sum(current) > 0, self._sum(own) == 0, np.nan)
        return {
            "nvml_gpus": np.where(has_driver, self._sum(listed & ~lost), np.nan),
            "lost_gpus": np.where(has_driver, self._sum(state_lost), np.nan),
            "reporting_gpus": np.where(self._sum(current) > 0, self._sum(devices.is_reporting), np.nan),
            "passthrough_gpus": np.where(known, self._sum(bound), supplied),
            "imported": imported,
        }

    def _expectations(self, columns: dict[str, Column]) -> dict[str, Column]:
        """Return the number of sources with an expected number of GPUs: the PCI bus, Kubernetes, a guest's description.

        Unknown for a guest without a description, whose boards are counted on its host, and for a machine without a
        known GPU.
        """
        pci, kubernetes = ~np.isnan(columns["pci_gpus"]), ~np.isnan(columns["kubernetes_gpus"])
        described = ~np.isnan(self._machines.readings.value(metrics.GUEST_GPUS))
        sources = pci.astype(np.float64) + kubernetes + described
        is_subject = (sources > 0) | ((self._sum(~self._devices.gpus.retired) > 0) & ~self._machines.is_guest)
        return {"expectation_sources": np.where(is_subject & self._machines.inputs.is_queried, sources, np.nan)}

    def _has_gpus(self, columns: dict[str, Column]) -> Column:
        """Return whether each machine has GPUs for its driver: at least one that is not passed through.

        The bus shows it, or the driver lists it: a GPU can have no PCI function of its own.
        """
        on_bus = columns["pci_gpus"] - np.nan_to_num(columns["passthrough_gpus"])
        is_vfio = self._devices.columns["bound_to_vfio"] == 1
        shown = np.where(np.isnan(on_bus), self._sum(~self._devices.gpus.retired & ~is_vfio) > 0, on_bus > 0)
        return shown | (np.nan_to_num(columns["nvml_gpus"]) > 0)

    def _services(self, has_gpus: Column) -> dict[str, Column]:
        """Return the states of driver and Fabric Manager. Without GPUs for it, the driver is not judged."""
        machines, devices = self._machines, self._devices
        manager = machines.readings.value(metrics.FABRIC_MANAGER)
        state = np.where(has_gpus, machines.driver_state, np.nan)
        links = np.nan_to_num(devices.nvswitch_links) * ~devices.gpus.retired
        has_links = self._sum(~np.isnan(devices.nvswitch_links) & ~devices.gpus.retired) > 0
        return {
            "driver_works": np.where(np.isnan(state), np.nan, state == _DRIVER_WORKS),
            "fabric_manager_runs": np.where(np.isnan(manager), np.nan, manager == _RUNNING),
            "nvswitch_links": np.where(has_links, self._sum(links), np.nan),
        }

    def _xids(self) -> dict[str, Column]:
        """Return whether XIDs are read, and the number of fatal ones."""
        devices, rows = self._devices, self._machines.rows
        watched = self._sum(devices.is_watched & ~devices.gpus.retired) > 0
        unwatched = self._sum(devices.is_unwatched & ~devices.gpus.retired) > 0
        fatal = np.zeros(self._count)
        fatal[rows[rows != NONE]] = devices.fatal_xids[rows != NONE]
        return {
            "xids_watched": np.where(watched, 1.0, np.where(unwatched, 0.0, np.nan)),
            "fatal_xids": np.where(watched | (fatal > 0), fatal, np.nan),
        }

    def _models(self) -> Texts:
        """Return the most frequent product name among the GPUs of each machine."""
        devices = self._devices
        texts = devices.gpus.readings.texts.texts
        known = (self._row != NONE) & (devices.names != NONE) & ~devices.gpus.retired
        pairs, counts = np.unique(self._row[known] * len(texts) + devices.names[known], return_counts=True)
        found: Texts = [None] * self._count
        for pair in pairs[np.argsort(counts, kind="stable")].tolist():
            found[pair // len(texts)] = texts[pair % len(texts)]
        return found

    def _classes(self, models: Texts, maxima: dict[str, int]) -> tuple[Texts, Texts]:
        """Return the class of each node by pool and GPU model, and the same for classes whose size is learned.

        A guest has neither: its driver and its size are its tenant's. Without a pool, machines of one model can have
        different sizes: nothing is learned.
        """
        classes: Texts = [
            None if model is None or is_guest else f"{self._inputs.cluster}/{pool or ''}/{model}"
            for model, pool, is_guest in zip(models, self._machines.pools, self._machines.is_guest, strict=True)
        ]
        known = {name for name in maxima if name.startswith(f"{self._inputs.cluster}/")}
        learned: Texts = []
        for name, pool in zip(classes, self._machines.pools, strict=True):
            if name is not None and pool and len(known) < MAX_CLASSES:
                known.add(name)
            learned.append(name if name in known else None)
        return classes, learned

    def _driver_states(self) -> Texts:
        states: Texts = [*DRIVER_STATES, None]
        numbers = np.nan_to_num(self._machines.driver_state, nan=NONE).astype(int)
        return [states[number] for number in numbers.tolist()]

    def _text(self, metric: str) -> Texts:
        texts = [*self._machines.readings.texts.texts, None]
        return [texts[place] for place in self._machines.readings.text(metric).tolist()]

    def _lost_messages(self, readers: ReaderNumbers) -> CounterReading:
        return read_counter(self._machines.readings, metrics.LOST_MESSAGES, readers.of(self._newest.readers))

    def _sum(self, cells: Column) -> Column:
        """Return the sum of cells of GPUs by machine."""
        known = self._row != NONE
        return np.bincount(self._row[known], np.asarray(cells, np.float64)[known], self._count)
