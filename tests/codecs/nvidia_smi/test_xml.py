"""XML output of nvidia-smi: devices, processes, truncation, entities and bounds."""

import pytest

from gpufleet.codecs.nvidia_smi import parse_xml, split_documents
from gpufleet.codecs.nvidia_smi.records import MAX_BYTES, MAX_DEPTH, MAX_LEAVES, MAX_LINES, MAX_ROUNDS, MAX_VALUE
from gpufleet.model.errors import WireError, WireLimitError
from tests.fakes.nvidia_smi.standin import DATA

HEAD = b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'


def document(gpu: bytes, head: bytes = HEAD) -> bytes:
    return head + b"<nvidia_smi_log><attached_gpus>1</attached_gpus>" + gpu + b"</nvidia_smi_log>\n"


def test_devices_mig_devices_and_processes() -> None:
    log = parse_xml(
        document(
            b'<gpu id="00000000:01:00.0"><fb_memory_usage><total>81559 MiB</total></fb_memory_usage>'
            b"<mig_devices><mig_device><index>0</index><gpu_instance_id>3</gpu_instance_id></mig_device></mig_devices>"
            b"<processes><process_info><pid>12</pid><type>C</type></process_info></processes></gpu>"
        )
    )
    (gpu,) = log.devices
    assert log.leaves == {"attached_gpus": "1"}
    assert gpu.name == "00000000:01:00.0"
    assert gpu.leaves == {"fb_memory_usage/total": "81559 MiB"}
    assert [mig.leaves for mig in gpu.mig] == [{"index": "0", "gpu_instance_id": "3"}]
    assert gpu.processes == ({"pid": "12", "type": "C"},)


def test_repeated_values_are_numbered() -> None:
    (gpu,) = parse_xml(document(b'<gpu id="a"><c><v>1</v><v>2</v><v>3</v></c></gpu>')).devices
    assert gpu.leaves == {"c/v": "1", "c/v[1]": "2", "c/v[2]": "3"}


def test_text_before_the_document_is_a_message() -> None:
    message = b"Unable to determine the device handle for GPU0000:65:00.0: Unknown Error\n"
    log = parse_xml(message + document(b'<gpu id="a"><uuid>GPU-1</uuid></gpu>'))
    assert log.messages == ("Unable to determine the device handle for GPU0000:65:00.0: Unknown Error",)
    assert len(log.devices) == 1


def test_truncated_document_has_its_complete_gpus() -> None:
    whole = (DATA / "xml-h100.xml").read_bytes()
    cut = whole[: whole.index(b"00000000:75:00.0") + 2000]
    log = parse_xml(cut)
    assert [gpu.name for gpu in log.devices] == ["00000000:53:00.0", "00000000:64:00.0"]
    assert log.devices == parse_xml(whole).devices[:2]
    (message,) = log.messages
    assert "truncated" in message


@pytest.mark.parametrize("keep", [0, 10, 200, 5000])
def test_document_without_a_complete_gpu_is_an_error(keep: int) -> None:
    with pytest.raises(WireError):
        parse_xml((DATA / "xml-h100.xml").read_bytes()[:keep])


@pytest.mark.parametrize(
    "name", [b"/usr/bin/python", b"\xff\xff", b"\x01", b"a & b", b"<a>", b"a\nb", b"</process_name>", b""]
)
def test_process_names_are_removed_before_parsing(name: bytes) -> None:
    one = b"<process_info>\n<pid>%d</pid><type>C</type>\n<process_name>%s</process_name>\n</process_info>\n"
    processes = b"".join(one % (pid, name) for pid in (12, 13))
    (gpu,) = parse_xml(document(b'<gpu id="a"><u>1</u><processes>' + processes + b"</processes></gpu>")).devices
    assert gpu.leaves == {"u": "1"}
    assert gpu.processes == tuple({"pid": pid, "type": "C", "process_name": ""} for pid in ("12", "13"))


def test_processes_on_one_line_are_separate() -> None:
    one = b"<process_info><pid>%d</pid><process_name>x</process_name></process_info>"
    gpu = b'<gpu id="a"><processes>' + one % 12 + one % 13 + b"</processes></gpu>\n"
    assert [process["pid"] for process in parse_xml(document(gpu)).devices[0].processes or ()] == ["12", "13"]


def test_endless_process_name_takes_bounded_time() -> None:
    with pytest.raises(WireError):
        parse_xml(document(b'<gpu id="a"><processes>' + b"<process_name>" * 500_000))


ENTITIES = {
    "internal": b'<!DOCTYPE nvidia_smi_log [<!ENTITY a "b">]>'
    b'<nvidia_smi_log><gpu id="x"><u>&a;</u></gpu></nvidia_smi_log>',
    "billion laughs": b'<!DOCTYPE nvidia_smi_log [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    b'<nvidia_smi_log><gpu id="x"><u>&b;</u></gpu></nvidia_smi_log>',
    "external file": b'<!DOCTYPE nvidia_smi_log [<!ENTITY a SYSTEM "file:///etc/hostname">]>'
    b'<nvidia_smi_log><gpu id="x"><u>&a;</u></gpu></nvidia_smi_log>',
    "parameter": b'<!DOCTYPE nvidia_smi_log [<!ENTITY % a SYSTEM "http://127.0.0.1:1/x"> %a;]>'
    b'<nvidia_smi_log><gpu id="x"><u>1</u></gpu></nvidia_smi_log>',
    "undeclared": HEAD + b'<nvidia_smi_log><gpu id="x"><u>&a;</u></gpu></nvidia_smi_log>',
}


@pytest.mark.parametrize("kind", ENTITIES)
def test_entities_of_every_kind_are_rejected(kind: str) -> None:
    with pytest.raises(WireError, match="entity") as caught:
        parse_xml(ENTITIES[kind])
    assert caught.value.field == "xml"


def test_external_dtd_is_not_loaded() -> None:
    head = b'<!DOCTYPE nvidia_smi_log SYSTEM "http://127.0.0.1:1/nvsmi_device_v13.dtd">'
    assert len(parse_xml(document(b'<gpu id="x"><u>1</u></gpu>', head)).devices) == 1


def test_error_for_another_document_names_its_root() -> None:
    with pytest.raises(WireError, match="<html>") as caught:
        parse_xml(b"<?xml version='1.0'?><html><gpu/></html>")
    assert caught.value.field == "xml"


def test_depth_leaves_and_value_length_are_bounded() -> None:
    with pytest.raises(WireLimitError, match="16") as caught:
        parse_xml(document(b'<gpu id="x">' + b"<a>" * MAX_DEPTH))
    assert caught.value.field == "xml"
    with pytest.raises(WireLimitError, match="20000") as caught:
        parse_xml(document(b'<gpu id="x">' + b"<a>1</a>" * (MAX_LEAVES + 1) + b"</gpu>"))
    assert caught.value.field == "a"
    (gpu,) = parse_xml(document(b'<gpu id="x"><a>' + b"9" * 100_000 + b"</a></gpu>")).devices
    assert len(gpu.leaves["a"]) == MAX_VALUE


def test_size_and_number_of_documents_are_bounded() -> None:
    one = b"<nvidia_smi_log>\n</nvidia_smi_log>\n"
    assert split_documents(one * MAX_ROUNDS + b"a message\n")[-1] == b"\na message\n"
    with pytest.raises(WireLimitError, match="4096") as caught:
        split_documents(one * (MAX_ROUNDS + 1))
    assert caught.value.field == "xml"
    with pytest.raises(WireLimitError, match="8388608"):
        split_documents(b" " * (MAX_BYTES + 1))


def test_process_name_does_not_end_a_document() -> None:
    name = b"<process_name>a\n</nvidia_smi_log>\n</process_name>"
    assert len(split_documents(document(b'<gpu id="x">' + name + b"</gpu>"))) == 1


def test_size_and_elements_are_bounded() -> None:
    with pytest.raises(WireLimitError, match="8388608") as caught:
        parse_xml(b"<nvidia_smi_log>" + b" " * MAX_BYTES)
    assert caught.value.field == "xml"
    gpus = b'<gpu id="x">' + b"<a/>" * 1000 + b"</gpu>"
    with pytest.raises(WireLimitError, match="50000") as caught:
        parse_xml(document(gpus * (MAX_LINES // 1000)))
    assert caught.value.field == "xml"


def test_unknown_encoding_is_an_error() -> None:
    with pytest.raises(WireError):
        parse_xml(b'<?xml version="1.0" encoding="x-nothing"?><nvidia_smi_log/>')
