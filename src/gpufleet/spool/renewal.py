"""Renewal of a spool's epoch: unacknowledged records are rewritten under a new epoch, in order and with their times."""

from collections.abc import Callable

from gpufleet.spool.folder import disk_error
from gpufleet.spool.recovery import mark_successor_complete, remove_successor, successor_folder
from gpufleet.spool.spool import Spool

_READ_RECORDS = 256
_READ_BYTES = 4 << 20
_ROOM_BYTES = 4096
"""Upper bound on the growth of a body when it is rewritten."""


def renew(spool: Spool, rewrite: Callable[[bytes, str, int], bytes | None]) -> None:
    """Write the unacknowledged records of a spool to a successor under a new epoch. Blocking.

    The successor takes effect once the caller has closed the spool and opened its folder again.

    Args:
        spool: open, with all records durable; nothing may be appended meanwhile.
        rewrite: returns a body for a new epoch and number, or None to leave the record out.

    Raises:
        SpoolError: if the disk refuses; the spool is unchanged.
    """
    folder = spool.folder
    try:
        remove_successor(folder)
        following = Spool.open(
            successor_folder(folder), max_bytes=1 << 62, segment_bytes=spool.segment_bytes + _ROOM_BYTES
        )  # practically unbounded, so that nothing is dropped; the bounds apply again from the next opening
        try:
            after = 0
            while records := spool.read(after, max_records=_READ_RECORDS, max_bytes=_READ_BYTES):
                for record in records:
                    rewritten = rewrite(record.body, following.epoch, following.next_seq)
                    if rewritten is not None:
                        following.append(rewritten, record.at)
                after = records[-1].seq
        finally:
            following.close()
        mark_successor_complete(folder)
    except OSError as error:
        raise disk_error(folder, "start a new epoch in it", error) from error
