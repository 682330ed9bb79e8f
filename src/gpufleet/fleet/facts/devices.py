"""Facts about the GPUs of a cluster. Pure."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.facts import metrics
from gpufleet.fleet.facts.conditions import (
    RECOVERIES,
    STATES,
    fault_columns,
    most_nvlinks,
    noisy_readings,
    proven_states,
    quality_columns,
    read_counter,
    state_columns,
)
from gpufleet.fleet.facts.core_readings import core_observation, missing_metrics
from gpufleet.fleet.facts.earlier import EarlierFindings
from gpufleet.fleet.facts.events import EventSubjects, GpuEvents, gpu_events
from gpufleet.fleet.facts.gpus import ClusterGpus, GpuIndex
from gpufleet.fleet.facts.history import GpuMemory, GpuObservation
from gpufleet.fleet.facts.memory import ReaderNumbers
from gpufleet.fleet.facts.newest import NONE, number_of
from gpufleet.fleet.facts.nodes import DRIVER_STATES, ClusterMachines
from gpufleet.fleet.facts.supplied import ClusterInputs
from gpufleet.fleet.rules.drift import positions_differ
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.rules.xids import XidFacts
from gpufleet.model.absence import Reason
from gpufleet.model.device_state import OK
from gpufleet.model.time import NANOS

NO_MIG = "disabled"
"""Layout of a GPU whose MIG mode is off."""

_VFIO, _DRIVER_ERROR, _NOT_COLLECTED = (
    number_of(reason) for reason in (Reason.BOUND_TO_VFIO, Reason.DRIVER_ERROR, Reason.NOT_COLLECTED)
)
_DRIVER_WORKS = DRIVER_STATES.index(OK)
_OK = STATES.index(OK)
_MIG_OFF, _MIG_ON = 0, 1

Texts = list[str | None]


class ClusterDevices(msgspec.Struct, frozen=True):
    """GPUs of a cluster with their facts.

    Attributes:
        gpus: the GPUs.
        keys: key of each as a subject.
        columns, texts: inputs of the scope device, except `machines`.
        is_listed: whether the machine's driver lists the GPU now.
        is_reporting: whether the GPU has current values and is not lost.
        names: position of the product name of each GPU in the texts of the readings, `NONE` if unknown.
        is_watched: whether XIDs of the GPU are read.
        is_unwatched: whether the agent reports that it cannot read them.
        nvswitch_links: NVLinks that end at an NVSwitch.
        fatal_xids: number of fatal XIDs of each machine, in the order of `NewestColumns.machines`.
    """

    gpus: ClusterGpus
    keys: list[str]
    columns: dict[str, Column]
    texts: dict[str, Texts]
    is_listed: Column
    is_reporting: Column
    names: Column
    is_watched: Column
    is_unwatched: Column
    nvswitch_links: Column
    fatal_xids: Column


class DeviceFactsBuilder:
    """Builds the facts about the GPUs of a cluster."""

    def __init__(self, inputs: ClusterInputs, gpus: ClusterGpus, machines: ClusterMachines, now: int) -> None:
        """Take the cluster.

        Args:
            inputs: what is known about it.
            gpus, machines: its GPUs and machines.
            now: nanoseconds since 1970 by the hub's clock.
        """
        self._inputs, self._newest = inputs, inputs.newest
        self._gpus, self._machines, self._now = gpus, machines, now
        self._readings = gpus.readings
        self._index = GpuIndex(gpus, inputs.newest.machines)
        self._is_guest = machines.of(machines.is_guest, gpus.machine)
        self._events: GpuEvents | None = None

    def build(
        self, history: GpuMemory, readers: ReaderNumbers, earlier: EarlierFindings, second: int
    ) -> ClusterDevices:
        """Return the facts, and record the newest readings in the history.

        Args:
            history: history of the cluster's GPUs.
            readers: numbers of readers.
            earlier: findings of an earlier process.
            second: time of the judgement by the memory's clock.
        """
        gpus, readings = self._gpus, self._readings
        keys = [
            f"{self._inputs.cluster}/{self._newest.machines[machine]}/{view}"
            for machine, view in zip(gpus.machine.tolist(), gpus.keys, strict=True)
        ]
        hashes = key_hashes(keys)
        self._events = self._find_events(history.record_works(hashes, self._works_at(), second))
        columns = {name: readings.value(metric) for name, metric in metrics.NUMBERS.items()}
        columns |= state_columns(readings, proven_states(readings)) | fault_columns(readings)
        columns |= quality_columns(readings, gpus.is_current)
        columns |= self._sides()
        holders, held_since = self._holders()
        columns |= holders
        judged = history.judge(self._observation(hashes, columns, held_since, readers, earlier, second), second)
        missing_core = judged.pop("missing_core")
        columns |= judged
        is_watched, is_unwatched = self._watched()
        xids = XidFacts(self._events.xids if self._events else {}, is_watched)
        columns |= xids.columns | self._with_events(columns)
        columns["lost"] = np.where(self._fell_off(), 1.0, columns["lost"])
        names = readings.text(metrics.GPU_NAME)
        columns["nvlinks_of_peers"] = most_nvlinks(
            columns["nvlinks_active"], gpus.machine, names, ~gpus.retired & gpus.is_current
        )
        texts, drift = self._drift(names)
        columns |= drift
        return ClusterDevices(
            gpus=gpus,
            keys=keys,
            columns=columns,
            texts={
                **texts,
                "recovery_action": self._recoveries(),
                "xid_codes": xids.codes,
                "missing_readings": _missing_texts(missing_core),
            },
            is_listed=gpus.is_listed & ~gpus.retired,
            is_reporting=gpus.is_current & ~gpus.retired & (columns["lost"] != 1) & readings.has_value(metrics.TOTALS),
            names=names,
            is_watched=is_watched,
            is_unwatched=is_unwatched,
            nvswitch_links=readings.value(metrics.NVSWITCH_LINKS),
            fatal_xids=np.zeros(len(self._newest.machines)) if self._events is None else self._events.fatal,
        )

    def _find_events(self, works_at: Column) -> GpuEvents | None:
        if self._inputs.events is None:
            return None
        rows = self._machines.rows
        subjects = EventSubjects(
            gpu_of=self._index.find,
            machine_of=self._gpus.machine,
            machines={name: place for place, name in enumerate(self._newest.machines)},
            booted_at=np.where(rows == NONE, 0, np.append(self._machines.booted_at, 0)[rows]),
            others_until=self._gpus.others_until,
            works_at=works_at,
        )
        return gpu_events(self._inputs.events, subjects, self._now)

    def _works_at(self) -> Column:
        """Return when the driver of each GPU found it `ok`, at most the receipt; 0 if it does not now.

        An imported state proves nothing: an exporter can repeat what it read before.
        """
        state, row = self._readings.reading(metrics.STATE)
        is_own = (state == _OK) & ~self._readings.at("imported", row).astype(bool)
        measured_at, received_at = (self._readings.at(name, row) for name in ("measured_at", "received_at"))
        return np.where(is_own, np.minimum(measured_at, received_at), 0)

    def _fell_off(self) -> Column:
        """Return whether each GPU is lost by an XID, or because only the PCI bus shows it while its driver works."""
        driver_works = self._machines.of(self._machines.driver_state, self._gpus.machine) == _DRIVER_WORKS
        is_dropped = (self._gpus.bus_reason == _DRIVER_ERROR) & ~self._gpus.is_current & driver_works
        fell_off = np.zeros(len(is_dropped), bool)
        fell_off[sorted(self._events.fell_off) if self._events else []] = True
        fell_off |= is_dropped
        return fell_off

    def _sides(self) -> dict[str, Column]:
        """Return the inputs about passthrough and the slot of each GPU. A guest's slots are virtual."""
        gpus = self._gpus
        is_vfio, has_values = gpus.bus_reason == _VFIO, self._readings.has_value(metrics.TOTALS) & gpus.is_current
        bus_is_read = ~np.isnan(self._machines.of(self._machines.inputs.numbers("pci_gpus"), gpus.machine))
        bound = _in_slot(gpus.slot, is_vfio)
        replaced = np.where(gpus.replaced_at == 0, np.inf, np.maximum(0, self._now - gpus.replaced_at) / NANOS)
        return {
            "bound_to_vfio": np.where(self._is_guest, np.nan, np.where(bound, 1.0, np.where(bus_is_read, 0.0, np.nan))),
            "host_values": np.where(self._is_guest, 0.0, _in_slot(gpus.slot, has_values)),
            "replaced_seconds": np.where(self._is_guest | (gpus.replaced_at == NONE), np.nan, replaced),
        }

    def _holders(self) -> tuple[dict[str, Column], Column]:
        """Return the inputs about holders, and the start of the newest holding of each GPU."""
        count, holders = len(self._gpus.keys), self._inputs.holders
        held, since, conflict = np.full(count, np.nan), np.zeros(count, np.int64), np.full(count, np.nan)
        if holders is not None:
            rows = self._index.find_all(holders.machine, holders.view)
            known = rows != NONE
            held[rows[known]] = np.asarray(holders.held, np.float64)[known]
            since[rows[known]] = np.asarray(holders.since, np.int64)[known]
            conflict[rows[known]] = np.asarray(holders.conflict, bool)[known]
        return {"held": held, "contradicting_holders": conflict}, since

    def _observation(
        self,
        hashes: Column,
        columns: dict[str, Column],
        held_since: Column,
        readers: ReaderNumbers,
        earlier: EarlierFindings,
        second: int,
    ) -> GpuObservation:
        readings, numbers = self._readings, readers.of(self._newest.readers)
        noisy = noisy_readings(readings)
        return GpuObservation(
            keys=hashes,
            noisy=noisy.count,
            signature=noisy.signature,
            sampled_at=noisy.sampled_at,
            counters={metric: read_counter(readings, metric, numbers) for metric in metrics.RESET_COUNTERS},
            restarted_at=np.zeros(len(hashes), np.int64) if self._events is None else self._events.restarted_at,
            slow=columns["hardware_slowdown"],
            slow_at=readings.at("measured_at", readings.reading(metrics.CLOCK_REASONS)[1]),
            nvlinks=columns["nvlinks_active"],
            nvlinks_before=earlier.nvlinks(hashes, second),
            core=core_observation(
                self._newest,
                readings,
                numbers,
                is_known=self._gpus.is_current,
                has_mig=self._has_mig(),
                missing_before=earlier.missing_core(hashes, second),
            ),
            held=columns["held"],
            held_since=held_since,
            now=self._now,
        )

    def _with_events(self, columns: dict[str, Column]) -> dict[str, Column]:
        """Return the numbers of slowdowns and ECC errors: the larger one of history and events.

        An agent that reads the reasons for low clocks reports every start: without an event there was no slowdown.
        """
        if self._events is None:
            return {}
        is_watched = self._gpus.is_own & ~self._is_guest & ~np.isnan(columns["hardware_slowdown"])
        known = np.where(is_watched, 0.0, np.nan)
        errors = np.where(self._events.uncorrected > 0, self._events.uncorrected, np.nan)
        starts = np.where(self._events.slowdowns > 0, self._events.slowdowns, known)
        return {
            "slowdown_starts": np.fmax(columns["slowdown_starts"], starts),
            "uncorrected_errors": np.fmax(columns["uncorrected_errors"], errors),
        }

    def _watched(self) -> tuple[Column, Column]:
        """Return whether XIDs of each GPU are read, and whether the agent reports that it cannot."""
        gpus, readings = self._gpus, self._readings
        log_is_read = ~np.isnan(self._machines.of(self._machines.lost_messages, gpus.machine))
        watched = readings.value(metrics.DRIVER_EVENTS) == 1
        watched |= ~np.isnan(readings.value(metrics.XIDS_SINCE)) | (log_is_read & gpus.is_own)
        if self._events is None:
            watched[:] = False
        return watched, ~watched & (readings.reasons(metrics.XIDS_ALL) == _NOT_COLLECTED)

    def _drift(self, names: Column) -> tuple[dict[str, Texts], dict[str, Column]]:
        """Return versions and MIG layouts, and whether they differ from those of the pool.

        A pool is the GPUs of one model in the machines of one pool of the cluster. The MIG layout of a guest's GPU is
        its tenant's.
        """
        machines, texts = self._machines, self._readings.texts.texts
        pool_numbers: dict[str | None, int] = {}
        pools = np.array([pool_numbers.setdefault(pool, len(pool_numbers)) for pool in [*machines.pools, None]])
        of_machine = pools[machines.rows[self._gpus.machine]]
        of_gpu = np.where((names == NONE) | self._gpus.retired, NONE, of_machine * len(texts) + names)
        vbios = self._readings.text(metrics.VBIOS)
        layouts, layout = self._mig_layouts()
        return {"vbios_version": _chosen(texts, vbios), "mig_layout": _chosen(layouts, layout)}, {
            "vbios_differs": positions_differ(of_gpu, vbios),
            "mig_layout_differs": positions_differ(of_gpu, layout),
        }

    def _has_mig(self) -> Column:
        """Return whether the MIG mode of each GPU is on, by its mode or by its MIG devices."""
        found = np.asarray(self._readings.value(metrics.MIG_MODE) == _MIG_ON)
        places = [self._index.find(*place) for place in self._newest.mig_layouts or ()]
        found[[at for at in places if at is not None]] = True
        return found

    def _mig_layouts(self) -> tuple[list[str], Column]:
        """Return the distinct MIG layouts, and the position of that of each GPU, `NONE` if it is unknown."""
        mode, gpus, known = self._readings.value(metrics.MIG_MODE), self._gpus, self._newest.mig_layouts
        layouts = {NO_MIG: 0}
        found = np.where((mode == _MIG_OFF) & ~self._is_guest, 0, NONE)
        if known is not None:
            for at in np.flatnonzero((mode == _MIG_ON) & ~self._is_guest).tolist():
                layout = known.get((self._newest.machines[int(gpus.machine[at])], gpus.keys[at]), "")
                found[at] = layouts.setdefault(layout, len(layouts))
        return list(layouts), found

    def _recoveries(self) -> Texts:
        recovery = self._readings.value(metrics.RECOVERY)
        found: Texts = [None] * len(recovery)
        for at in np.flatnonzero(recovery > 0).tolist():
            found[at] = RECOVERIES[int(recovery[at])]
        return found


def _missing_texts(masks: Column) -> Texts:
    found: Texts = [None] * len(masks)
    for at in np.flatnonzero(masks).tolist():
        found[at] = missing_metrics(int(masks[at]))
    return found


def key_hashes(keys: Iterable[str]) -> Column:
    """Return the hash of each key, salted per process."""
    return np.fromiter(map(hash, keys), np.int64)


def _chosen(texts: Sequence[str], places: Column) -> Texts:
    """Return the texts at these positions, None at `NONE`."""
    return np.array([*texts, None], object)[places].tolist()  # type: ignore[no-any-return]


def _in_slot(slot: Column, flags: Column) -> Column:
    """Return whether a key of the slot of each GPU has the flag."""
    return flags | np.isin(slot, slot[flags & (slot != NONE)])
