"""Answers of a shell that is kept: the right one is taken however it comes, and nothing else is."""

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


def asked(most: int = MOST) -> tuple[ShellReply, bytes]:
    """Return a question, and its mark."""
    answer = ShellReply(("run", "5", "nvidia-smi", "-L"), max_output_bytes=most)
    mark, _, words = answer.line.partition(b" ")
    assert words == b"run 5 nvidia-smi -L\n"
    return answer, mark


def printed(mark: bytes, out: bytes = b"GPU 0\n", code: int = 0) -> bytes:
    return mark + b"\n" + out + b"\n" + mark + f" {code}\n".encode()


def quiet(mark: bytes, err: bytes = b"", code: int = 0) -> bytes:
    return err + b"\n" + mark + f" {code}\n".encode()


def take(answer: ShellReply, pieces: Iterable[tuple[bytes, bool]]) -> ExecResult | None:
    done = None
    for piece, error in pieces:
        assert done is None
        done = answer.take(piece, error=error)
    return done


@given(st.binary(max_size=300), st.binary(max_size=100), st.integers(0, 255), st.data())
def test_answer_is_complete_with_its_last_piece(out: bytes, err: bytes, code: int, data: st.DataObject) -> None:
    answer, mark = asked()
    streams = [(printed(mark, out, code), False), (quiet(mark, err, code), True)]
    pieces: list[tuple[bytes, bool]] = []
    while any(rest for rest, _ in streams):
        which = data.draw(st.sampled_from([number for number, (rest, _) in enumerate(streams) if rest]))
        rest, error = streams[which]
        size = data.draw(st.integers(1, len(rest)))
        pieces.append((rest[:size], error))
        streams[which] = rest[size:], error
    assert take(answer, pieces) == ExecResult(exit_code=code, stdout=out, stderr=err)


def test_every_question_has_a_mark_of_its_own() -> None:
    assert len({asked()[1] for _ in range(100)}) == 100


def test_a_late_answer_to_an_older_question_is_none_to_this_one() -> None:
    answer, _ = asked()
    _, older = asked()
    with pytest.raises(WireError):
        answer.take(printed(older), error=False)


@pytest.mark.parametrize("more", [b"x", b"\n", b"0123456789abcdef\n"])
@pytest.mark.parametrize("at_once", [True, False])
def test_what_comes_after_the_end_is_no_answer(more: bytes, at_once: bool) -> None:
    answer, mark = asked()
    pieces = [printed(mark) + more] if at_once else [printed(mark), more]
    with pytest.raises(WireError):
        take(answer, [(piece, False) for piece in pieces])
    answer, mark = asked()
    pieces = [quiet(mark) + more] if at_once else [quiet(mark), more]
    with pytest.raises(WireError):
        take(answer, [(piece, True) for piece in pieces])


@pytest.mark.parametrize("code", [b"", b"x", b"-1", b"0 0", b"1000", b"1e1", "٣".encode()])
def test_an_end_without_an_exit_code_is_none(code: bytes) -> None:
    answer, mark = asked()
    with pytest.raises(WireError):
        answer.take(mark + b"\n\n" + mark + b" " + code + b"\n", error=False)


def test_both_streams_are_awaited() -> None:
    answer, mark = asked()
    assert answer.take(printed(mark), error=False) is None
    assert answer.take(b"words", error=True) is None
    assert answer.take(quiet(mark), error=True) == ExecResult(exit_code=0, stdout=b"GPU 0\n", stderr=b"words")


@pytest.mark.parametrize("error", [True, False])
def test_as_much_as_it_may_be_and_not_a_byte_more(error: bool) -> None:
    for size in (MOST, MOST + 1):
        answer, mark = asked()
        whole = quiet(mark, b"x" * size) if error else printed(mark, b"x" * size)
        if size > MOST:
            with pytest.raises(OutputTooLargeError):
                answer.take(whole, error=error)
        else:
            assert answer.take(whole, error=error) is None


@pytest.mark.parametrize("error", [True, False])
def test_what_never_ends_is_cut(error: bool) -> None:
    answer, mark = asked()
    start = b"" if error else mark + b"\n"
    with pytest.raises(OutputTooLargeError):
        take(answer, [(start, error), *((bytes(100), error) for _ in range(MOST // 100 + 2))])


@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=20))
def test_any_bytes_are_awaited_or_refused(pieces: list[tuple[bytes, bool]]) -> None:
    answer, _ = asked(200)
    with contextlib.suppress(WireError, OutputTooLargeError):
        assert take(answer, pieces) is None
