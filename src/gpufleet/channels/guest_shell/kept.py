"""A shell that is kept in a guest: how it is asked, and what it prints for one question. Pure.

A question is a line: a mark that was never used before, and the script's words. The mark stands on a line of its own
before what is printed, and on a line with the exit code after it, there on both streams. Nothing else is an answer: one
to an older question, a second one, or more after the end ends the session.
"""

import re
import secrets
from collections.abc import Sequence

from gpufleet.channels.bounded import TooMuchError
from gpufleet.model.errors import WireError
from gpufleet.ports import ExecResult

_CODE = re.compile(rb"([0-9]{1,3})\n", re.ASCII)
_MAX_CODE = 4
"""Bytes of an exit code and its line's end."""


class Answer:
    """What is printed for one question, as it comes."""

    def __init__(self, words: Sequence[str], *, max_output_bytes: int) -> None:
        """Take the question.

        Args:
            words: the script's, plain ones.
            max_output_bytes: what either stream may carry.
        """
        mark = secrets.token_hex(8)
        self.line = " ".join((mark, *words)).encode("ascii") + b"\n"
        self._out = _Stream(f"{mark}\n".encode("ascii"), mark, max_output_bytes)
        self._err = _Stream(b"", mark, max_output_bytes)

    def take(self, piece: bytes, *, error: bool) -> ExecResult | None:
        """Take what came on standard output, or on standard error; return the answer once it is whole.

        Raises:
            TooMuchError: if it is more than it may be.
            WireError: if it is no answer to this question.
        """
        (self._err if error else self._out).take(piece)
        if self._out.code is None or self._err.code is None:
            return None
        return ExecResult(exit_code=self._out.code, stdout=self._out.printed, stderr=self._err.printed)


class _Stream:
    """One stream of it, from its start to a line of the mark and the exit code."""

    def __init__(self, start: bytes, mark: str, most: int) -> None:
        self._start, self._end, self._most = start, f"\n{mark} ".encode("ascii"), most
        self._came = bytearray()
        self.code: int | None = None
        self.printed = b""

    def take(self, piece: bytes) -> None:
        if self.code is not None:
            raise WireError("session", "something came after the end of the answer")
        start, end, came = self._start, self._end, self._came
        looked = max(len(start), len(came) - len(end) - _MAX_CODE)
        came += piece
        if not came.startswith(start[: len(came)]):
            raise WireError("session", "what came is no answer to this question")
        at = came.find(end, looked)
        if (at if at >= 0 else len(came) - len(end)) - len(start) > self._most:
            raise TooMuchError
        code = bytes(came[at + len(end) :]) if at >= 0 else b""
        if b"\n" not in code and len(code) < _MAX_CODE:
            return  # the rest is on its way
        if not (found := _CODE.fullmatch(code)):
            raise WireError("session", "something came after the end of the answer")
        self.code, self.printed = int(found[1]), bytes(came[len(start) : at])
        came.clear()
