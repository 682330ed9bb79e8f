"""Fuzzing of the nvidia-smi parsers: at most a `WireError`, and values of bounded size."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs import nvidia_smi
from gpufleet.codecs.nvidia_smi.records import MAX_VALUE, DeviceRecord, Log
from gpufleet.model.errors import WireError
from tests.fakes.nvidia_smi.standin import DATA

PARSERS: dict[str, Callable[[bytes], object]] = {
    "csv": nvidia_smi.parse_csv,
    "csv without header": lambda content: nvidia_smi.parse_csv(content, ("index", "name", "uuid")),
    "xml": nvidia_smi.parse_xml,
    "text": nvidia_smi.parse_text,
    "help": nvidia_smi.parse_help,
    "list": nvidia_smi.parse_listing,
    "capture": nvidia_smi.parse_capture,
    "failure": lambda content: nvidia_smi.classify_failure(1, content, content),
}
CAPTURES = {file.name: file.read_bytes()[:60_000] for file in sorted(DATA.iterdir()) if file.suffix in (".xml", ".txt")}
PIECES = st.sampled_from(
    [b"GPU 00000000:01:00.0", b"\n    ", b" : ", b"N/A", b", ", b"<gpu id='1'>", b"</gpu>", b"<nvidia_smi_log>",
     b"&x;", b"<![CDATA[", b"MIG Device", b"vGPU ID : 1", b"Processes", b"\x00", b"\xff\xfe", b"\n", b"[1]", b"/",
     b"<mig_devices><mig_device>", b"</mig_device>", b"<processes><process_info>", b"</process_info>",
     b"################\n# a :: b\n# $ nvidia-smi -q\n################\n", b'"uuid" or "gpu_uuid"', b"\t", b"_ : "],
)  # fmt: skip


def check(record: DeviceRecord) -> None:
    for text in (*record.leaves.values(), *record.fields.values()):
        assert len(text) <= MAX_VALUE
    for part in (*record.mig, *record.vgpus):
        check(part)


def survive(parser: str, content: bytes) -> None:
    """Fail with any exception except WireError, and with an overlong text in a parsed record."""
    try:
        found = PARSERS[parser](content)
    except WireError:
        return
    if isinstance(found, Log):
        for device in found.devices:
            check(device)


@pytest.mark.parametrize("parser", PARSERS)
@given(pieces=st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=60))
def test_parsers_survive_random_pieces_of_outputs(parser: str, pieces: list[bytes]) -> None:
    survive(parser, b"".join(pieces))


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.data())
def test_parsers_survive_damaged_captures(parser: str, data: st.DataObject) -> None:
    content = bytearray(CAPTURES[data.draw(st.sampled_from(sorted(CAPTURES)))])
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 200))] = data.draw(st.binary(max_size=8))
    survive(parser, bytes(content[: data.draw(st.integers(0, len(content)))]))
