"""Memory that a process took for its start, given back to the system."""

import contextlib
import ctypes


def give_back_memory() -> None:
    """Let the C library return what it holds and nobody uses; does nothing where it is not glibc.

    Importing takes much that is free afterwards, most of all where modules have to be compiled because their byte code
    may not be written. Without being told, the C library keeps it.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
