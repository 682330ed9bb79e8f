"""A second beginning: everything that waits, in its order, under a new epoch; nothing of it is lost on the way."""

from collections.abc import Callable

from gpufleet.spool.folder import words
from gpufleet.spool.recovery import clear, declare_whole, successor
from gpufleet.spool.spool import Spool

_READ_RECORDS = 256
_READ_BYTES = 4 << 20
_ROOM_BYTES = 4096
"""More than a body can grow by being made anew."""


def renew(spool: Spool, make: Callable[[bytes, str, int], bytes | None]) -> None:
    """Prepare a new epoch for what waits in a spool. Blocking. Close it then, and open its folder again.

    Args:
        spool: open, all of it durable; nothing is put into it meanwhile.
        make: returns a body for a new epoch and number, or None for one that is left behind.

    Raises:
        SpoolError: if the disk refuses; the spool is as it was.
    """
    folder = spool.folder
    try:
        clear(folder)
        following = Spool.open(
            successor(folder), max_bytes=1 << 62, segment_bytes=spool.segment_bytes + _ROOM_BYTES
        )  # nothing is dropped here: the bounds hold again from the next opening
        try:
            after = 0
            while records := spool.read(after, max_records=_READ_RECORDS, max_bytes=_READ_BYTES):
                for _, body in records:
                    made = make(body, following.epoch, following.next_seq)
                    if made is not None:
                        following.append(made)
                after = records[-1][0]
        finally:
            following.close()
        declare_whole(folder)
    except OSError as error:
        raise words(folder, "begin a new epoch in it", error) from error
