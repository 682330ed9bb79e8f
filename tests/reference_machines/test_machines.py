"""Snapshots of four typical machines: complete and without anything else."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gpufleet.exporters.prometheus import PrometheusExporter
from gpufleet.exporters.table import TableExporter
from gpufleet.model.absence import Reason
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.view import Side, ViewKind
from tests.reference_machines.machines import (
    H200_BUSES,
    NO_SUPPORTED_GPU,
    ReferenceMachine,
    h200s,
    tree,
    uuid,
    without_display_controllers,
)


def dims(snapshot: Snapshot, metric: str) -> dict[tuple[str, ...], object]:
    return {tuple(one.labels.values()): one.value for one in snapshot.host.dimensions if one.metric == metric}


def states(snapshot: Snapshot, reader: str) -> set[ReaderState]:
    return {report.state for report in snapshot.readers if report.reader == reader}


def gpu_series(snapshot: Snapshot) -> set[str]:
    """Return the names of the Prometheus families about GPUs that have a value."""
    page = PrometheusExporter().render(snapshot).decode()
    found = set()
    for family in text_string_to_metric_families(page):
        if family.name.startswith("gpufleet_gpu_") and family.samples:
            found.add(family.name)
    return found


def values(device: Device) -> dict[str, object]:
    return {name: reading.value for name, reading in device.readings.items() if reading.value is not None}


class TestHealthyH200Host:
    """Eight H200, eight InfiniBand ports of the fabric, two RoCE ports."""

    async def test_all_gpus_are_shown(self, tmp_path: Path) -> None:
        snapshot = await ReferenceMachine(tmp_path, tree("bare_metal"), **h200s(H200_BUSES)).snapshot()
        assert snapshot.node.name == "node-h200-01"
        assert states(snapshot, "host") == states(snapshot, "nvidia_smi") == {ReaderState.OK}
        assert snapshot.aggregate.coverage == "8 of 8 devices"
        assert [device.uuid for device in snapshot.devices] == [uuid(number) for number in range(8)]
        assert [device.pci_address for device in snapshot.devices] == [f"0000:{b.lower()}:00.0" for b in H200_BUSES]
        assert {device.side for device in snapshot.devices} == {Side.HOST}
        assert {device.name for device in snapshot.devices} == {"NVIDIA H200"}
        power = [values(device)["gpu_power_watts"] for device in snapshot.devices]
        assert power == [600.5 + number for number in range(8)]
        total = snapshot.aggregate.metrics["gpu_power_watts"]
        assert (total.value, total.reporting, total.devices) == (sum(600.5 + n for n in range(8)), 8, 8)
        assert snapshot.host.readings["nvidia_devices"].value == 8

    async def test_fabric_ports_are_shown(self, tmp_path: Path) -> None:
        snapshot = await ReferenceMachine(tmp_path, tree("bare_metal"), **h200s(H200_BUSES)).snapshot()
        rates = dims(snapshot, "host_infiniband_rate_bytes_per_second")
        fabric_ports = {labels[0] for labels in rates if labels[0] in {f"mlx5_{n}" for n in range(8)}}
        assert len(fabric_ports) == 8

    async def test_no_gpu_is_bus_only(self, tmp_path: Path) -> None:
        snapshot = await ReferenceMachine(tmp_path, tree("bare_metal"), **h200s(H200_BUSES)).snapshot()
        assert len(snapshot.devices) == 8
        assert all(device.side is not Side.PCI_ONLY for device in snapshot.devices)

    async def test_lost_gpu_is_still_counted(self, tmp_path: Path) -> None:
        scenario = h200s(H200_BUSES)
        lost = scenario["rows"].pop(3)
        message = f"Unable to determine the device handle for GPU{lost['pci.bus_id'][4:]}: GPU is lost.\n"
        machine = ReferenceMachine(tmp_path, tree("bare_metal"), **scenario, before=message, code=15)
        machine.smi.write(log=_without(scenario["log"], lost["pci.bus_id"]))
        snapshot = await machine.snapshot()
        assert snapshot.aggregate.coverage == "7 of 8 devices"
        (missing,) = [device for device in snapshot.devices if device.uuid is None]
        assert missing.pci_address == "0000:5d:00.0"
        assert values(missing) == {"gpu_state": "lost"}
        assert states(snapshot, "nvidia_smi") == {ReaderState.PARTIAL}


def _without(log: str, bus: str) -> str:
    start = log.index(f'<gpu id="{bus}">')
    return log[:start] + log[log.index("</gpu>", start) + len("</gpu>") :]


class TestSliceGuest:
    """Virtual machine with one passed-through H200 and its own network card."""

    async def test_guest_shows_its_own_gpu_and_network(self, tmp_path: Path) -> None:
        snapshot = await ReferenceMachine(tmp_path, tree("guest"), **h200s(("06",))).snapshot()
        assert snapshot.node.name == "vm-slice-7"
        (device,) = snapshot.devices
        assert (device.kind, device.uuid, device.pci_address) == (ViewKind.GPU, uuid(0), "0000:06:00.0")
        assert snapshot.aggregate.coverage == "1 of 1 devices"
        assert device.readings["gpu_virtualization_mode"].value == "passthrough"
        networks = {labels[0] for labels in dims(snapshot, "host_network_receive_bytes_total")}
        assert networks == {"enp1s0", "lo"}
        assert dims(snapshot, "host_infiniband_rate_bytes_per_second") == {}

    async def test_guest_shows_nothing_of_the_host(self, tmp_path: Path) -> None:
        snapshot = await ReferenceMachine(tmp_path, tree("guest"), **h200s(("06",))).snapshot()
        page = PrometheusExporter().render(snapshot).decode()
        assert all(uuid(number) not in page for number in range(1, 8))
        assert "node-h200-01" not in page


class TestCpuOnlyNode:
    """Machine without a GPU and without NVIDIA software."""

    async def test_cpu_only_node_is_healthy_without_gpu_series(self, tmp_path: Path) -> None:
        machine = ReferenceMachine(tmp_path, without_display_controllers(tree("guest")))
        machine.smi.remove()
        snapshot = await machine.snapshot()
        assert snapshot.devices == ()
        assert snapshot.host.pci == ()
        assert snapshot.aggregate.coverage == "0 of 0 devices"
        assert snapshot.aggregate.metrics == {}
        assert gpu_series(snapshot) == set()
        assert states(snapshot, "host") == {ReaderState.OK}
        assert snapshot.host.readings["host_cpus"].value is not None
        devices = snapshot.host.readings["nvidia_devices"]
        assert (devices.value, devices.absent) == (None, Reason.READER_FAILED)
        assert "nvidia-smi: not found" in TableExporter(width=200, colour=False).render(snapshot).decode()


class TestBrokenDriver:
    """Driver without supported GPUs: all passed through to guests, or bound but not driven."""

    async def test_passed_through_gpus_have_their_reason(self, tmp_path: Path) -> None:
        machine = ReferenceMachine(tmp_path, tree("kubevirt_node"))
        machine.smi.fault(stdout=NO_SUPPORTED_GPU, code=255)
        snapshot = await machine.snapshot()
        assert {device.pci_address: device.readings["gpu_power_watts"].absent for device in snapshot.devices} == {
            "0000:01:00.0": Reason.BOUND_TO_VFIO,
            "0000:41:00.0": Reason.BOUND_TO_VFIO,
            "0000:81:00.0": Reason.NO_DRIVER,
        }
        assert all(values(device) == {} for device in snapshot.devices)
        assert snapshot.aggregate.coverage == "0 of 3 devices"
        assert snapshot.host.readings["nvidia_driver_state"].value == "no_supported_gpu"
        assert snapshot.host.readings["nvidia_devices"].absent is Reason.NO_SUPPORTED_GPU
        assert gpu_series(snapshot) <= {"gpufleet_gpu_info"}

    async def test_bound_but_undriven_gpus_have_the_driver_reason(self, tmp_path: Path) -> None:
        machine = ReferenceMachine(tmp_path, tree("bare_metal"))
        machine.smi.fault(stdout=NO_SUPPORTED_GPU, code=255)
        snapshot = await machine.snapshot()
        assert len(snapshot.devices) == 8
        reasons = {device.readings["gpu_power_watts"].absent for device in snapshot.devices}
        assert reasons == {Reason.NO_SUPPORTED_GPU}
        assert states(snapshot, "nvidia_smi") == {ReaderState.FAILED}
        (message,) = {report.last_error for report in snapshot.readers if report.reader == "nvidia_smi"}
        assert message.startswith("Failed to initialize NVML: No supported GPUs were found")
