"""Answers about senders and their batches."""

import datetime as dt

import msgspec

from gpufleet.model.liveness import Liveness


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Run of sequence numbers of a sender.

    Attributes:
        epoch: id of the run.
        received: number of batches received.
        highest: highest sequence number received.
        missing: numbers from 1 to `highest` that were not received.
        gaps: ranges of missing numbers, lowest first, at most 20.
    """

    epoch: str
    received: int
    highest: int
    missing: int
    gaps: tuple[tuple[int, int], ...]


class EpochConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Two machines that number their batches under the same epoch: a copied disk image, or a restored snapshot.

    Attributes:
        epoch: the shared epoch.
        batches: number of batches rejected for it; the sender then starts a new epoch and posts them again.
        first_at, last_at: when the first and the last of them came, by the hub's clock.
        detail: evidence of the last conflict.
    """

    epoch: str
    batches: int
    first_at: dt.datetime
    last_at: dt.datetime
    detail: str


class SenderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Row of `GET /v1/senders`.

    Attributes:
        cluster, sender: identity.
        sent_at: creation time of its newest batch, by its clock; by the hub's if the hub creates its batches.
        received_at: when that was received, by the hub's clock.
        age_seconds: since then.
        last_seen_at: `received_at`, or the last answer of a target that the hub polls; None if it never answered.
        heartbeat_interval_seconds: its declared interval, or None if it never declared one. For a target that the hub
            polls, it is the hub's.
        liveness: state by the time in which the hub was ingesting.
        clock_ahead_seconds: seconds that its clock is ahead of the hub's, less the shortest transit time; or negative.
            None if the hub creates its batches: it is a writer of another system, or a target that the hub polls.
        complete_up_to: everything that it measured up to this time was received, except `missing`, by its clock; None
            if the sender is lost or never reported its backlog.
        version: its gpufleet version, as reported; empty if the hub creates its batches.
        queue_records: its spool backlog, as reported, less the records received since; None if unknown, or if the hub
            creates its batches.
        oldest_unsent: measurement time of the oldest queued record, as reported; None if the queue is empty.
        dropped_total: records dropped since its spool was created, as reported; None likewise.
        missing: batches lost or still on the way, over all epochs.
        epochs: its runs of sequence numbers.
        conflict: the newest since the hub started, or None.
    """

    cluster: str
    sender: str
    sent_at: dt.datetime
    received_at: dt.datetime
    age_seconds: float
    last_seen_at: dt.datetime | None
    heartbeat_interval_seconds: float | None
    liveness: Liveness
    clock_ahead_seconds: float | None
    complete_up_to: dt.datetime | None
    version: str
    queue_records: int | None
    oldest_unsent: dt.datetime | None
    dropped_total: int | None
    missing: int
    epochs: tuple[EpochRecord, ...]
    conflict: EpochConflict | None = None
