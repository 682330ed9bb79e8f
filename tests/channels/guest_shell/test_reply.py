"""Replies of a shell session: valid replies in any pieces, and everything else is refused."""

import contextlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.channels.guest_shell.shell import ShellReply
from gpufleet.channels.output import OutputTooLargeError
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import ExecResult

MOST = 1000


def new_reply(most: int = MOST) -> tuple[ShellReply, bytes]:
    """Return the reply to a command, and its mark."""
    reply = ShellReply(("run", "5", "nvidia-smi", "-L"), max_output_bytes=most)
    mark, _, command = reply.line.partition(b" ")
    assert command == b"run 5 nvidia-smi -L\n"
    return reply, mark


def printed(mark: bytes, out: bytes = b"GPU 0\n", code: int = 0) -> bytes:
    return mark + b"\n" + out + b"\n" + mark + f" {code}\n".encode()


def quiet(mark: bytes, err: bytes = b"", code: int = 0) -> bytes:
    return err + b"\n" + mark + f" {code}\n".encode()


def take(reply: ShellReply, pieces: Iterable[tuple[bytes, bool]]) -> ExecResult | None:
    done = None
    for piece, error in pieces:
        assert done is None
        done = reply.take(piece, error=error)
    return done


@given(st.binary(max_size=300), st.binary(max_size=100), st.integers(0, 255), st.data())
def test_answer_is_complete_with_its_last_piece(out: bytes, err: bytes, code: int, data: st.DataObject) -> None:
    reply, mark = new_reply()
    streams = [(printed(mark, out, code), False), (quiet(mark, err, code), True)]
    pieces: list[tuple[bytes, bool]] = []
    while any(rest for rest, _ in streams):
        which = data.draw(st.sampled_from([number for number, (rest, _) in enumerate(streams) if rest]))
        rest, error = streams[which]
        size = data.draw(st.integers(1, len(rest)))
        pieces.append((rest[:size], error))
        streams[which] = rest[size:], error
    assert take(reply, pieces) == ExecResult(exit_code=code, stdout=out, stderr=err)


def test_every_command_has_a_unique_mark() -> None:
    assert len({new_reply()[1] for _ in range(100)}) == 100


def test_late_reply_to_an_older_command_is_refused() -> None:
    reply, _ = new_reply()
    _, older = new_reply()
    with pytest.raises(WireError):
        reply.take(printed(older), error=False)


@pytest.mark.parametrize("more", [b"x", b"\n", b"0123456789abcdef\n"])
@pytest.mark.parametrize("at_once", [True, False])
def test_data_after_the_end_is_refused(more: bytes, at_once: bool) -> None:
    reply, mark = new_reply()
    pieces = [printed(mark) + more] if at_once else [printed(mark), more]
    with pytest.raises(WireError):
        take(reply, [(piece, False) for piece in pieces])
    reply, mark = new_reply()
    pieces = [quiet(mark) + more] if at_once else [quiet(mark), more]
    with pytest.raises(WireError):
        take(reply, [(piece, True) for piece in pieces])


@pytest.mark.parametrize("code", [b"", b"x", b"-1", b"0 0", b"1000", b"1e1", "٣".encode()])
def test_end_without_a_valid_exit_code_is_refused(code: bytes) -> None:
    reply, mark = new_reply()
    with pytest.raises(WireError):
        reply.take(mark + b"\n\n" + mark + b" " + code + b"\n", error=False)


def test_reply_needs_the_end_of_both_streams() -> None:
    reply, mark = new_reply()
    assert reply.take(printed(mark), error=False) is None
    assert reply.take(b"message", error=True) is None
    assert reply.take(quiet(mark), error=True) == ExecResult(exit_code=0, stdout=b"GPU 0\n", stderr=b"message")


@pytest.mark.parametrize("error", [True, False])
def test_output_of_the_maximum_size_is_accepted(error: bool) -> None:
    for size in (MOST, MOST + 1):
        reply, mark = new_reply()
        whole = quiet(mark, b"x" * size) if error else printed(mark, b"x" * size)
        if size > MOST:
            with pytest.raises(OutputTooLargeError):
                reply.take(whole, error=error)
        else:
            assert reply.take(whole, error=error) is None


@pytest.mark.parametrize("error", [True, False])
def test_endless_output_is_refused(error: bool) -> None:
    reply, mark = new_reply()
    start = b"" if error else mark + b"\n"
    with pytest.raises(OutputTooLargeError):
        take(reply, [(start, error), *((bytes(100), error) for _ in range(MOST // 100 + 2))])


@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=20))
def test_any_bytes_are_awaited_or_refused(pieces: list[tuple[bytes, bool]]) -> None:
    reply, _ = new_reply(200)
    with contextlib.suppress(WireError, OutputTooLargeError):
        assert take(reply, pieces) is None
