"""Input formats: each is recognised by its content and converted to snapshots."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.codecs.batch import encode
from gpufleet.codecs.batch.compression import compress
from gpufleet.codecs.bundle import pack
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.decoding import FORMATS, decode
from gpufleet.decoding.format import MAX_BYTES, CapturedInput, DecodeResult
from gpufleet.exporters.csv import CsvExporter
from gpufleet.exporters.json import JsonExporter
from gpufleet.exporters.prometheus import PrometheusExporter
from gpufleet.exporters.table import TableExporter
from gpufleet.hub.receive.log import Wal
from gpufleet.model.absence import Reason
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.event import Event
from gpufleet.model.status import ReaderState
from gpufleet.model.time import NANOS
from gpufleet.recording.format import RecordingHeader, make_frame_header, pack_frame_header, pack_header
from gpufleet.spool import Spool
from tests.fakes.batches import gpu_sample, gpu_view, make_batch
from tests.fakes.nvidia_smi.standin import DATA
from tests.support.profiles import examples
from tests.support.snapshots import example_snapshot

AT = 1_800_000_000 * NANOS


def of(content: bytes, name: str | None = None) -> tuple[str, DecodeResult]:
    found, decoded = decode(CapturedInput(content=content, name="file", at=AT), name)
    return found.name, decoded


def csv_of(capture: str) -> bytes:
    lines = (DATA / capture).read_bytes().split(b"\n")
    at = next(n for n, line in enumerate(lines) if line.startswith(b"timestamp, driver_version"))
    return b"\n".join(lines[at : at + 2]) + b"\n"


def body(number: int) -> bytes:
    """Return a batch with one GPU of this number."""
    return encode(make_batch(number, AT, samples=(gpu_sample(gpu_view(number), AT - number),)))


def recording_of(document: bytes) -> bytes:
    """Return a recording of one frame."""
    header = RecordingHeader(b"i" * 16, AT)
    frame = compress(document)
    return pack_header(header) + pack_frame_header(header.seed, make_frame_header(header.seed, 1, AT, frame)) + frame


EXAMPLES: dict[str, bytes] = {
    "nvidia-smi-failure": b"Failed to initialize NVML: Driver/library version mismatch\n",
    "nvidia-smi-xml": (DATA / "xml-h100.xml").read_bytes(),
    "nvidia-smi-text": (DATA / "text-vgpu-guest-a6000-24q-unlicensed-unrestricted.txt").read_bytes(),
    "nvidia-smi-csv": csv_of("capture-h200__590.48.01.txt"),
    "nvidia-smi-capture": (DATA / "capture-h200-mig__590.48.01.txt").read_bytes(),
    "prometheus": (DATA.parent / "exposition" / "dcgm-exporter-l40s-vm.txt").read_bytes(),
    "snapshot": encode_snapshot(example_snapshot()),
    "batch": body(1),
    "bundle": pack([body(1), body(2)]),
    "recording": recording_of(encode_snapshot(example_snapshot())),
}


@pytest.fixture
async def segment(tmp_path: Path) -> bytes:
    spool = Spool.open(tmp_path / "spool", max_bytes=64 << 20, max_age_seconds=1e6)
    for n in (1, 2, 3):
        await spool.put(body(n))
    spool.sync()
    (file,) = (tmp_path / "spool").glob("*.seg")
    content = file.read_bytes()
    spool.close()
    return content


def test_every_format_has_an_example() -> None:
    assert {one.name for one in FORMATS} == {*EXAMPLES, "segment"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_format_is_recognised_and_can_be_exported(name: str) -> None:
    found, decoded = of(EXAMPLES[name])
    assert found == name
    assert decoded.snapshots
    for snapshot in decoded.snapshots:
        for exporter in (JsonExporter(), CsvExporter(), PrometheusExporter(), TableExporter(width=160, colour=False)):
            assert exporter.render(snapshot)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_earlier_format_matches(name: str) -> None:
    fitting = [one.name for one in FORMATS if one.matches(EXAMPLES[name])]
    assert fitting[0] == name


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("batch", "bundle", "recording")])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("named", [False, True])
def test_texts_written_on_windows(name: str, encoding: str, named: bool) -> None:
    """PowerShell redirects in UTF-16 with CRLF line ends."""
    text = EXAMPLES[name].decode().replace("\n", "\r\n")
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    found, decoded = of((mark + text).encode(encoding), name if named else None)
    plain = of(EXAMPLES[name])[1]
    assert found == name
    assert decoded.snapshots == plain.snapshots
    assert decoded.notes == plain.notes


def test_values_and_time_are_taken_from_the_output() -> None:
    _, decoded = of(EXAMPLES["nvidia-smi-capture"])
    (snapshot,) = decoded.snapshots
    assert snapshot.measured_at.isoformat() == "2026-07-03T22:22:27.218000+00:00"
    gpu, *migs = snapshot.devices
    assert gpu.readings["gpu_power_watts"].value == 295.01
    assert gpu.readings["gpu_bar1_used_bytes"].value == 143157 << 20
    assert gpu.readings["gpu_utilization_ratio"].absent is Reason.NOT_IN_MIG_MODE
    assert [mig.uuid for mig in migs] == [f"MIG-{n:08d}-0000-0000-0000-{n:012d}" for n in range(5)]
    assert [mig.readings["gpu_compute_processes"].value for mig in migs] == [0, 3, 0, 0, 0]
    assert decoded.unknown == ()
    assert "temperature/gpu_target_temperature" in decoded.unread


@pytest.mark.parametrize("name", ["nvidia-smi-failure", "nvidia-smi-csv", "prometheus"])
def test_capture_has_neither_pass_durations_nor_intervals(name: str) -> None:
    (snapshot,) = of(EXAMPLES[name])[1].snapshots
    assert snapshot.readers
    assert {(one.duration_seconds, one.interval_seconds) for one in snapshot.readers} == {(None, None)}
    page = PrometheusExporter().render(snapshot).decode()
    assert re.findall(r"^gpufleet_reader_(?:duration|interval)_seconds{.*", page, re.MULTILINE) == []
    assert "longest pass" not in TableExporter().render(snapshot).decode()


def test_mig_devices_without_a_list_stay_distinct() -> None:
    content = (DATA / "xml-a100-mig-v12.xml").read_text()
    gpu = content[content.index("<gpu ") : content.index("</gpu>") + 6]
    other = gpu.replace("00000000:01:00.0", "00000000:02:00.0").replace("GPU-513536b6", "GPU-613536b6")
    _, decoded = of(content.replace(gpu, gpu + other).encode())
    (snapshot,) = decoded.snapshots
    assert len(snapshot.devices) == 10
    assert snapshot.readers[0].state is ReaderState.PARTIAL
    assert snapshot.readers[0].error_class == "partial"
    assert re.findall(r"\d+", snapshot.readers[0].last_error) == ["4", "2"]  # reported, printed


def test_unknown_values_of_a_newer_nvidia_smi_are_listed() -> None:
    content = EXAMPLES["nvidia-smi-xml"].replace(b"<fan_speed>", b"<brand_new>7</brand_new><fan_speed>")
    _, decoded = of(content)
    assert decoded.unknown == ("brand_new",)


def test_readable_sections_of_a_damaged_capture_are_kept() -> None:
    broken = EXAMPLES["nvidia-smi-capture"].replace(b"timestamp, driver_version, vgpu_driver", b"?, ?, vgpu_driver")
    _, decoded = of(broken)
    assert len(decoded.snapshots[0].devices) == 6
    assert any("--query-gpu" in note for note in decoded.notes)


def test_batches_of_a_bundle_are_merged_by_machine() -> None:
    _, decoded = of(EXAMPLES["bundle"])
    (snapshot,) = decoded.snapshots
    assert snapshot.node.name == "node-a"
    assert [device.uuid for device in snapshot.devices] == ["GPU-1", "GPU-2"]
    assert snapshot.devices[0].readings["gpu_temperature_celsius"].absent is Reason.TIMEOUT


def test_newest_reading_wins_in_any_batch_order() -> None:
    samples = [gpu_sample(gpu_view(1), AT - age, gpu_power_watts=100.0 + age) for age in (1, 5, 3)]
    _, decoded = of(pack([encode(make_batch(n, AT, samples=(one,))) for n, one in enumerate(samples, 1)]))
    assert decoded.snapshots[0].devices[0].readings["gpu_power_watts"].value == 101.0


def test_events_are_in_the_snapshot() -> None:
    batch = make_batch(1, AT, samples=())
    xid = Event(view=gpu_view(1), kind="xid", code=79, at=AT)
    report = msgspec.structs.replace(batch.reports[0], events=(xid,), readers=())
    _, decoded = of(encode(msgspec.structs.replace(batch, reports=(report,))))
    (event,) = decoded.snapshots[0].events
    assert (event.kind, event.code) == ("xid", 79)


def test_spool_segment_is_decoded(segment: bytes) -> None:
    name, decoded = of(segment)
    assert name == "segment"
    assert len(decoded.snapshots[0].devices) == 3
    assert any("3 records" in note for note in decoded.notes)


def test_device_that_left_its_machine_has_no_present_values() -> None:
    """Its reader, whose interval is 10 s, lists only the other GPU after 40 s."""
    both = make_batch(1, AT - 40 * NANOS, gpus=2)
    _, decoded = of(pack([encode(both), encode(make_batch(2, AT, gpus=1))]))
    (snapshot,) = decoded.snapshots
    readings = {one.uuid: one.readings["gpu_power_watts"] for one in snapshot.devices}
    assert {uuid: (one.value, one.absent) for uuid, one in readings.items()} == {
        "GPU-0": (100.0, None),
        "GPU-1": (None, Reason.STALE),
    }
    assert snapshot.aggregate.metrics["gpu_power_watts"].reporting == 1


def test_damaged_segment_yields_its_intact_records(segment: bytes) -> None:
    at = segment.index(b"GFrc", len(segment) // 2)
    _, decoded = of(segment[: at + 40] + b"\xff" + segment[at + 41 :])
    assert len(decoded.snapshots[0].devices) == 2


async def test_hub_log_segment_is_decoded(tmp_path: Path) -> None:
    wal = Wal.open(tmp_path / "wal", max_bytes=64 << 20, max_body_bytes=1 << 20)
    await wal.append(AT, EXAMPLES["batch"])
    content = next((tmp_path / "wal").rglob("*.seg")).read_bytes()
    wal.close()
    assert of(content)[1].snapshots[0].devices[0].uuid == "GPU-1"


def test_unknown_metrics_are_left_out_of_a_snapshot() -> None:
    document = json.loads(EXAMPLES["snapshot"])
    document["devices"][0]["readings"]["gpu_brand_new"] = {"value": 1}
    document["host"]["dimensions"][0]["labels"] = {"other": "x"}
    _, decoded = of(json.dumps(document).encode())
    assert decoded.unknown[0] == "gpu_brand_new"
    assert PrometheusExporter().render(decoded.snapshots[0])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"hello",
        b"{}",
        b"<html></html>",
        b"a, b\n1, 2\n",
        b"\x00" * 100,
        b"NVIDIA-SMI version  : 590.48.01\n",
    ],
)
def test_unknown_format_error_lists_all_formats(content: bytes) -> None:
    with pytest.raises(WireError) as caught:
        of(content)
    assert [one.name for one in FORMATS if f" {one.name} (" not in str(caught.value)] == []


def test_named_format_is_not_guessed() -> None:
    with pytest.raises(WireError):
        of(EXAMPLES["nvidia-smi-xml"], "nvidia-smi-csv")


def test_oversized_input_is_rejected() -> None:
    with pytest.raises(WireLimitError):
        of(b"x" * (MAX_BYTES + 1))


@settings(max_examples=examples(20, 300))
@given(data=st.data())
def test_damaged_input_raises_at_most_a_wire_error(data: st.DataObject) -> None:
    content = bytearray(EXAMPLES[data.draw(st.sampled_from(sorted(EXAMPLES)))][:50_000])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 100))] = data.draw(st.binary(max_size=8))
    try:
        _, decoded = of(bytes(content))
    except WireError:
        return
    for snapshot in decoded.snapshots:
        for exporter in (JsonExporter(), PrometheusExporter(), TableExporter(width=100, colour=False)):
            assert exporter.render(snapshot)


@pytest.mark.parametrize(
    ("message", "state", "reason"),
    [
        ("No devices were found", "no_supported_gpu", Reason.NO_SUPPORTED_GPU),
        ("Failed to initialize NVML: Driver/library version mismatch", "mismatch", Reason.DRIVER_MISMATCH),
        ("Failed to initialize NVML: Unknown Error", "no_access", Reason.NOT_PERMITTED),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest",
            "no_driver",
            Reason.NO_DRIVER,
        ),
        (
            "Failed to initialize NVML: No supported GPUs were found\nUnable to determine the number of GPUs",
            "no_supported_gpu",
            Reason.NO_SUPPORTED_GPU,
        ),
    ],
)
def test_driver_failure_message_is_a_snapshot(message: str, state: str, reason: Reason) -> None:
    name, decoded = of(message.encode() + b"\n")
    assert name == "nvidia-smi-failure"
    (snapshot,) = decoded.snapshots
    assert snapshot.devices == ()
    assert snapshot.host.readings["nvidia_driver_state"].value == state
    assert {status.error_class for status in snapshot.readers} == {reason}
    assert all(message.split("\n")[0] in status.last_error for status in snapshot.readers)


@pytest.mark.parametrize(("text", "state"), [("GPU is lost", "lost"), ("Unknown Error", "unreadable")])
def test_gpu_that_a_failure_message_names_is_decoded(text: str, state: str) -> None:
    name, decoded = of(f"Unable to determine the device handle for GPU0000:65:00.0: {text}\n".encode())
    assert name == "nvidia-smi-failure"
    (snapshot,) = decoded.snapshots
    assert {one.pci_address: one.readings["gpu_state"].value for one in snapshot.devices} == {"0000:65:00.0": state}
    assert snapshot.host.readings["nvidia_driver_state"].value == "error"
    assert {status.error_class for status in snapshot.readers} == {Reason.DRIVER_ERROR}


def test_unknown_message_is_not_a_driver_failure() -> None:
    with pytest.raises(WireError):
        of(b"hello\n", "nvidia-smi-failure")


def test_state_of_a_truncated_device_is_not_reported() -> None:
    lines = (DATA / "text-vgpu-guest-a6000-24q-unlicensed-unrestricted.txt").read_bytes().split(b"\n")
    at = next(n for n, line in enumerate(lines) if b"Product Architecture" in line)
    _, decoded = of(b"\n".join(lines[: at + 1]) + b"\n")
    (device,) = decoded.snapshots[0].devices
    assert device.readings["gpu_name"].value == "NVIDIA RTXA6000-24Q"
    assert device.readings["gpu_state"].absent is Reason.NOT_REPORTED


def test_processes_of_a_truncated_output_are_not_counted() -> None:
    content = (DATA / "text-vgpu-guest-a6000-24q-unlicensed-unrestricted.txt").read_bytes()
    at = content.index(b"\n", content.index(b"Process ID"))
    _, decoded = of(content[: at + 1])
    assert decoded.snapshots[0].devices[0].readings["gpu_compute_processes"].absent is Reason.NOT_REPORTED


@pytest.mark.parametrize("as_recording", [False, True])
def test_decoded_document_is_judged_by_its_own_readings(as_recording: bool) -> None:
    snapshot = example_snapshot()
    first, *others = snapshot.devices
    lost = msgspec.structs.replace(first.readings["gpu_power_watts"], value=None, absent=Reason.GPU_LOST)
    ok = msgspec.structs.replace(first.readings["gpu_state"], value="ok", absent=None)
    first = msgspec.structs.replace(first, readings={**first.readings, "gpu_power_watts": lost, "gpu_state": ok})
    document = encode_snapshot(msgspec.structs.replace(snapshot, devices=(first, *others)))
    _, decoded = of(recording_of(document) if as_recording else document)
    (found,) = decoded.snapshots
    assert found.devices[0].readings["gpu_state"].value == "lost"
