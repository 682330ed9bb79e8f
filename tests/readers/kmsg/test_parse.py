"""NVIDIA driver messages of the kernel log, in every shape, and lines that resemble them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.model.event import EventKind
from gpufleet.readers.kmsg.parse import MAX_TEXT, DriverMessage, KmsgRecord, MessageParser, UuidMessage, parse_line

# The shapes are those of NVIDIA's public documentation and its open kernel modules' format strings.
XIDS = {
    "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.": (
        "0000:1b:00", 79, {"message": "GPU has fallen off the bus.", "pid": "1234"}),
    "NVRM: Xid (PCI:0000:1B:00): 79, GPU has fallen off the bus.": (
        "0000:1B:00", 79, {"message": "GPU has fallen off the bus."}),
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": ("0000:03:00", 14, {"message": "Channel 00000001"}),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No": (
        "0000:01:00", 94,
        {"message": "Contained: CE User Channel (0x9). RST: No, D-RST: No", "pid": "7194", "gpu_instance": "5"}),
    "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception": (
        "0000:3b:00", 13,
        {"message": "Graphics Exception", "pid": "9", "gpu_instance": "1", "compute_instance": "2"}),
    "NVRM: Xid (PCI:0000:c1:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error on link 6": (
        "0000:c1:00", 74, {"message": "NVLink: fatal error on link 6"}),
    "NVRM: Xid (PCI:0000:01:00): 62, 0ced(3044) 00000000 00000000": (
        "0000:01:00", 62, {"message": "0ced(3044) 00000000 00000000"}),
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": (
        "0000:01:00", 154,
        {"message": "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
         "recovery": "Node Reboot Required"}),
    "NVRM: Xid (PCI:00010000:01:00.0): 31": ("00010000:01:00.0", 31, {}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), XIDS.items(), ids=range(len(XIDS)))
def test_xid_message_shapes(text: str, expected: tuple[str, int, dict[str, str]]) -> None:
    pci, code, attributes = expected
    assert MessageParser().parse(text) == DriverMessage("xid", pci, code, attributes)


@pytest.mark.parametrize("name", ["secret-project", "a secret", "a,secret", "a, secret", "12345678,secret", "secret"])
@pytest.mark.parametrize("message", ["Ch 00000008, intr 10", "0ced(3044) 00000000"])
def test_process_names_are_removed_from_messages(name: str, message: str) -> None:
    parsed = MessageParser().parse(f"NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name={name}, {message}")
    assert isinstance(parsed, DriverMessage)
    assert "secret" not in str(parsed)
    assert parsed.attributes["message"] == message


@pytest.mark.parametrize(
    ("text", "kind", "pci", "code", "attributes"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
            "sxid", None, 28006,
            {"pci_address": "0000:86:00.0", "switch": "nvswitch3", "severity": "non-fatal", "link": "46",
             "message": "Link 46 MC TS crumbstore MCTO (First)"},
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "sxid", None, 20034,
            {"pci_address": "0000:c1:00.0", "switch": "nvswitch0", "severity": "fatal", "link": "30",
             "message": "Link 30 LTSSM Fault Up"},
        ),
        (
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", "gpu_lost", "0000:01:00.0", 0,
            {"message": "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."},
        ),
        (
            "NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "gpu_lost", "0000:01:00.0", 0,
            {"message": "NVRM: GPU at 0000:01:00.0 has fallen off the bus."},
        ),
        (
            "NVRM: The NVIDIA GPU 0000:07:00.0\\x0aNVRM: (PCI ID: 10de:1b80)\\x0aNVRM: fallen off the bus and is not",
            "gpu_lost", "0000:07:00.0", 0, None,
        ),
        (
            "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0x56:1463)", "gpu_init_failed", "0000:18:00.0", 0,
            {"message": "RmInitAdapter failed! (0x26:0x56:1463)"},
        ),
        (
            "NVRM: GPU 0000:18:00.0: rm_init_adapter failed, device minor number 3", "gpu_init_failed",
            "0000:18:00.0", 0, {"message": "rm_init_adapter failed, device minor number 3"},
        ),
        (
            "NVRM: API mismatch: the client has the version 535.161.08, but\\x0aNVRM: this kernel module has 535.183",
            "driver_mismatch", None, 0, None,
        ),
        (
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29 23:15:11 UTC 2025",
            "driver_loaded", None, 0, {"version": "580.105.08"},
        ),
        (
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder)",
            "driver_loaded", None, 0, {"version": "550.54.15"},
        ),
        (
            "[nvidia-vgpu-vfio] AA1F0000-1111-2222-3333-444455556666: start failed. status: 0x1",
            "vgpu_failed", None, 0,
            {"instance": "aa1f0000-1111-2222-3333-444455556666", "message": "start failed. status: 0x1"},
        ),
    ],
)  # fmt: skip
def test_other_messages_that_are_events(
    text: str, kind: str, pci: str | None, code: int, attributes: dict[str, str] | None
) -> None:
    parsed = MessageParser().parse(text)
    assert isinstance(parsed, DriverMessage)
    assert (parsed.kind, parsed.pci, parsed.code) == (kind, pci, code)
    assert attributes is None or parsed.attributes == attributes
    assert kind in set(EventKind)


def test_gpu_lost_message_over_several_records() -> None:
    parser = MessageParser()
    assert parser.parse("NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:1b80)") is None
    assert parser.parse("NVRM: installed in this system has") is None
    parsed = parser.parse("NVRM: fallen off the bus and is not responding to commands.")
    assert isinstance(parsed, DriverMessage)
    assert parsed.pci == "0000:07:00.0"
    assert parser.parse("NVRM: fallen off the bus and is not responding to commands.") is None


def test_uuid_message_of_a_pci_address() -> None:
    uuid = "GPU-b850f46d-d5ea-c752-ddf3-c697cfb5f0ad"
    assert MessageParser().parse(f"NVRM: GPU at PCI:0000:07:00: {uuid}") == UuidMessage("0000:07:00", uuid)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "usb 1-4: device descriptor read/64, error -71",
        "someone wrote NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:1b:00): ",
        "NVRM: Xid (PCI:1b:00): 79, x",
        "NVRM: Xid (PCI:0000:1b:00): 79x",
        "NVRM: Xid (PCI:0000:1b:00): 12345678, too large",
        "nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 28006, Data {0x00140006, 0x00140006}",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
        "[nvidia-vgpu-vfio] aa1f0000-1111-2222-3333-444455556666: vGPU migration enabled",
    ],
)
def test_similar_lines_are_ignored(text: str) -> None:
    assert MessageParser().parse(text) is None


def test_record_line_is_parsed() -> None:
    assert parse_line(b"4,1234,5678901,-;NVRM: x") == KmsgRecord(0, 1234, 5678901, "NVRM: x")
    assert parse_line(b"12,7,8,-,caller=T42;written by a process") == KmsgRecord(1, 7, 8, "written by a process")
    assert parse_line(b"6,1,2,c;a \xff byte") == KmsgRecord(0, 1, 2, "a � byte")
    long = parse_line(b"6,1,2,-;" + b"x" * 10_000)
    assert long is not None
    assert len(long.text) == MAX_TEXT


@pytest.mark.parametrize(
    "line",
    [b"", b" SUBSYSTEM=pci", b" DEVICE=+pci:0000:1b:00.0", b";x", b"6,1;x", b"6,-1,2,-;x", b"6,1,2,-", b"xxxxxxx"],
)
def test_invalid_record_line_is_none(line: bytes) -> None:
    assert parse_line(line) is None


@given(st.binary(max_size=400))
@example(b"6," + b"9" * 19 + b",1,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=" + b"9" * 300)
def test_any_line_is_a_record_or_none(line: bytes) -> None:
    record = parse_line(line)
    if record is not None:
        assert isinstance(MessageParser().parse(record.text), DriverMessage | UuidMessage | None)


@given(
    st.from_regex(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", fullmatch=True),
    st.integers(0, 999_999),
    st.text(max_size=80),
)
def test_xid_code_and_address_come_from_the_front_of_a_line(pci: str, code: int, detail: str) -> None:
    parsed = MessageParser().parse(f"NVRM: Xid (PCI:{pci}): {code}, {detail}")
    assert isinstance(parsed, DriverMessage)
    assert (parsed.kind, parsed.pci, parsed.code) == ("xid", pci, code)
