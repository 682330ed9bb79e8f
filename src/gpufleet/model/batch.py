"""What a sender posts to a hub, as records. Its bytes are `codecs/batch`'s business."""

import msgspec

from gpufleet.model.event import Event
from gpufleet.model.holding import Holding
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.status import Heartbeat, ReaderStatus


class MachineReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was learned of one machine since the report before.

    Attributes:
        machine: evidence of which machine it is.
        samples, events, readers, holdings: what was learned.
        inventory: the whole list of display controllers, or None when it is not part of this report.
    """

    machine: Machine
    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    readers: tuple[ReaderStatus, ...] = ()
    holdings: tuple[Holding, ...] = ()
    inventory: tuple[PciFunction, ...] | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One post of one sender.

    Attributes:
        cluster: id of the cluster the sender belongs to.
        sender: name of the sender, unique in its cluster.
        epoch: 32 hexadecimal digits, random, made with the sender's spool: a wiped spool is a new epoch.
        seq: 1, 2, 3, ... within the epoch; a gap is a loss.
        sent_at: nanoseconds since 1970 when the batch was made.
        heartbeat: the sender's word that it lives, on the heartbeat's own schedule.
        reports: one a machine.
    """

    cluster: str
    sender: str
    epoch: str
    seq: int
    sent_at: int
    heartbeat: Heartbeat | None = None
    reports: tuple[MachineReport, ...] = ()
