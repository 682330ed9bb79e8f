"""Parsers of the host reader: hostile bytes, numbers, mounts, network, identity and services."""

import re
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.catalogue.host import INTERFACE_CLASSES
from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse import cloud, identity, kernel, kubernetes, network, pci, services, storage, text
from gpufleet.readers.host.parse.kernel import ProcessorTimes

PARSERS: tuple[Callable[[bytes, str], object], ...] = (
    kernel.parse_stat,
    kernel.parse_loadavg,
    kernel.parse_meminfo,
    kernel.parse_pressure,
    storage.parse_mountinfo,
    network.parse_speed,
    network.parse_port_state,
    network.parse_rate,
    network.parse_octets,
    pci.is_display,
    services.parse_process_stat,
    identity.parse_system_uuid,
    identity.parse_machine_id,
    identity.parse_boot_id,
    identity.parse_dmi_text,
    identity.parse_os_name,
    cloud.parse_instance_data,
    kubernetes.parse_client_certificate,
    kubernetes.parse_pod_token,
    text.line,
)
SEEDS = (
    b"cpu0 1 2 3 4 5 6 7 8 9 10\nbtime 1\n",
    b"0.1 0.2 0.3 1/2 3\n",
    b"MemTotal: 1 kB\n",
    b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    b"29 1 9:0 / / rw shared:1 - ext4 /dev/md0 rw\n",
    b"4: ACTIVE\n400 Gb/sec (4X NDR)\n",
    b"0x030200\n",
    b"1 (a b) S 1\n",
    b"-1\n",
    b'{"v1": {"cloud_name": "aws", "instance_id": "i-0"}, "ds": {"meta_data": null}}',
    b"-----BEGIN CERTIFICATE-----\nMBIwEKADAgECAgEBMAAwADAAMAA=\n-----END CERTIFICATE-----\n",
    b"e30.eyJrdWJlcm5ldGVzLmlvIjp7Im5vZGUiOnsibmFtZSI6ImEiLCJ1aWQiOiJiIn19fQ.c2ln",
)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
class TestHostileBytes:
    @given(content=st.binary(max_size=300))
    def test_random_bytes_raise_at_most_a_wire_error(
        self, parse: Callable[[bytes, str], object], content: bytes
    ) -> None:
        self._check(parse, content)

    @given(seed=st.sampled_from(SEEDS), position=st.integers(0, 60), byte=st.binary(max_size=3), cut=st.integers(0, 60))
    def test_damaged_files_raise_at_most_a_wire_error(
        self, parse: Callable[[bytes, str], object], seed: bytes, position: int, byte: bytes, cut: int
    ) -> None:
        self._check(parse, seed[:position] + byte + seed[position + cut :])

    @given(content=st.text(alphabet="0123456789 .:-+eExX_nainf\n٣²", max_size=60))
    def test_odd_numbers_raise_at_most_a_wire_error(self, parse: Callable[[bytes, str], object], content: str) -> None:
        self._check(parse, content.encode())

    @staticmethod
    def _check(parse: Callable[[bytes, str], object], content: bytes) -> None:
        message = "/proc/x: "
        try:
            parse(content, "/proc/x")
        except WireError as error:
            message = str(error)
        assert message.startswith("/proc/x: ")
        assert len(message) < 300


class TestNumbers:
    @pytest.mark.parametrize("token", ["", "-1", "+1", "1_000", "0x10", "1.0", "٣", "1e3", str(2**63), str(2**64 - 1)])
    def test_invalid_counts_are_rejected(self, token: str) -> None:
        with pytest.raises(WireError):
            text.count(token, "f")

    @pytest.mark.parametrize("token", ["nan", "inf", "-0.1", "1e9", ".5", "1.", "1_0", "٣.٣", "", "9" * 30])
    def test_invalid_numbers_are_rejected(self, token: str) -> None:
        with pytest.raises(WireError):
            text.number(token, "f")

    def test_byte_counters_stay_integers(self) -> None:
        assert text.count(str(2**53 + 1), "f") == 2**53 + 1

    @given(st.text())
    def test_shown_texts_are_bounded_and_printable(self, value: str) -> None:
        got = text.printable(value)
        assert len(got) <= text.MAX_TEXT
        assert re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", got) is None
        got.encode("utf-8")


def times(**cores: tuple[int, ...]) -> ProcessorTimes:
    return ProcessorTimes({name.removeprefix("c"): ticks for name, ticks in cores.items()}, None)


class TestUtilization:
    def test_utilization_is_the_share_of_non_idle_time(self) -> None:
        before, now = times(c0=(10, 0, 10, 100, 20, 0, 0, 0)), times(c0=(20, 0, 15, 170, 30, 1, 2, 2))
        assert kernel.utilization(before, now) == 20 / 100

    def test_utilization_without_elapsed_time_is_absent(self) -> None:
        same = times(c0=(1, 2, 3, 4, 5, 6, 7, 8))
        assert kernel.utilization(same, same) is None

    def test_decreasing_iowait_counts_as_unchanged(self) -> None:
        before, now = times(c0=(0, 0, 0, 100, 50, 0, 0, 0)), times(c0=(30, 0, 0, 200, 40, 0, 0, 0))
        assert kernel.utilization(before, now) == 30 / 130

    def test_restarted_core_is_left_out(self) -> None:
        before = times(c0=(0, 0, 0, 100), c1=(500, 0, 0, 500))
        now = times(c0=(50, 0, 0, 150), c1=(5, 0, 0, 5), c2=(9, 9, 9, 9))
        assert kernel.utilization(before, now) == 0.5

    def test_utilization_is_absent_if_every_core_restarted(self) -> None:
        assert kernel.utilization(times(c0=(9, 9, 9, 9)), times(c0=(1, 1, 1, 1))) is None

    @given(*[st.dictionaries(st.sampled_from("0123"), st.tuples(*[st.integers(0, 10**9)] * 8))] * 2)
    def test_utilization_of_any_ticks_is_a_ratio(
        self, before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]]
    ) -> None:
        share = kernel.utilization(ProcessorTimes(before, None), ProcessorTimes(now, None))
        assert share is None or 0 <= share <= 1

    def test_old_kernels_have_fewer_columns(self) -> None:
        assert kernel.parse_stat(b"cpu0 1 2 3 4\n", "f").cores == {"0": (1, 2, 3, 4)}

    def test_guest_time_is_not_counted_twice(self) -> None:
        assert len(kernel.parse_stat(b"cpu0 100 0 0 0 0 0 0 0 90 5\n", "f").cores["0"]) == len(kernel.MODES)

    def test_arm_processor_model_is_numeric(self) -> None:
        fields = kernel.parse_cpuinfo(b"processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")
        assert kernel.cpu_model(fields, "f") == "ARM implementer 0x41 part 0xd4f"

    def test_load_without_threads_is_not_counted(self) -> None:
        assert kernel.parse_loadavg(b"0.00 0.00 0.00 0/0 0\n", "f") is None
        assert kernel.parse_loadavg(b"0.00 0.00 0.00 0/1 1\n", "f") == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("content", [b"0\n", b"0000000000\n", b"0" * 32, b"(none)\n", b"(None)\n", b"Default string\n"])
def test_default_of_firmware_is_no_dmi_text(content: bytes) -> None:
    with pytest.raises(WireError):
        identity.parse_dmi_text(content, "f")


def test_zeros_in_a_dmi_text_are_kept() -> None:
    assert identity.parse_dmi_text(b"00000001000\n", "f") == "00000001000"


class TestMounts:
    def test_mount_octal_escapes(self) -> None:
        (mount,) = storage.parse_mountinfo(rb"1 2 8:1 / /a\040b\134c\011d rw - ext4 /dev/x\040y rw", "f")
        assert (mount.point, mount.source) == ("/a b\\c\td", "/dev/x y")

    def test_last_mount_on_a_point_hides_earlier_ones(self) -> None:
        rows = b"1 2 8:1 / /a rw - ext4 /dev/a rw\n2 2 8:2 / /a rw - xfs /dev/b rw\n"
        assert [m.fstype for m in storage.choose_filesystems(storage.parse_mountinfo(rows, "f"))] == ["xfs"]

    def test_whole_filesystem_is_preferred_to_a_bind_mount(self) -> None:
        rows = b"1 2 8:1 /sub /a rw - ext4 /dev/a rw\n2 2 8:1 / /longer/point rw - ext4 /dev/a rw\n"
        chosen = storage.choose_filesystems(storage.parse_mountinfo(rows, "f"))
        assert [m.point for m in chosen] == ["/longer/point"]

    def test_read_only_superblock_is_read_only(self) -> None:
        (mount,) = storage.parse_mountinfo(b"1 2 8:1 / /a rw - ext4 /dev/a ro,errors=remount-ro", "f")
        assert mount.read_only

    def test_read_only_mount_of_a_writable_filesystem(self) -> None:
        (mount,) = storage.parse_mountinfo(b"1 2 8:1 / / ro,relatime - ext4 /dev/a rw", "f")
        assert not mount.read_only

    def test_automounts_are_not_touched(self) -> None:
        rows = b"1 2 0:50 / /net rw - autofs systemd-1 rw\n"
        assert storage.choose_filesystems(storage.parse_mountinfo(rows, "f")) == ()


class TestNetwork:
    @given(
        st.builds(
            network.Interface,
            name=st.text(max_size=16),
            has_device=st.booleans(),
            is_bridge=st.booleans(),
            is_tap=st.booleans(),
            kind=st.sampled_from(["", "vlan", "bridge", "bond", "macvtap"]),
            hardware_type=st.sampled_from(["", "1", "32", "772"]),
            index=st.sampled_from(["", "1", "2"]),
            linked_index=st.sampled_from(["", "0", "1", "2"]),
        )
    )
    def test_every_interface_has_a_class_of_the_catalogue(self, interface: network.Interface) -> None:
        assert network.classify(interface) in INTERFACE_CLASSES

    @pytest.mark.parametrize(
        ("interface", "expected"),
        [
            (network.Interface(name="tmfifo_net0", is_tap=True), "tmfifo"),
            (network.Interface(name="oob", has_device=True, driver="mlxbf-tmfifo"), "tmfifo"),
            (network.Interface(name="macvtap0", hardware_type="1", kind="macvtap", index="3", linked_index="2"), "tap"),
            (network.Interface(name="pf0vf3", has_device=True, port_name="pf0vf3"), "virtual"),
            (network.Interface(name="p0", has_device=True, port_name="p0"), "physical"),
            (network.Interface(name="dummy0", hardware_type="1", index="3", linked_index="3"), "virtual"),
            (network.Interface(name="sit0", hardware_type="776", index="3", linked_index="0"), "virtual"),
        ],
        ids=lambda value: value.name if isinstance(value, network.Interface) else "",
    )
    def test_interface_class(self, interface: network.Interface, expected: str) -> None:
        assert network.classify(interface) == expected

    @pytest.mark.parametrize(
        ("content", "expected"), [(b"-1\n", None), (b"4294967295", None), (b"1000\n", 125_000_000)]
    )
    def test_speed(self, content: bytes, expected: int | None) -> None:
        assert network.parse_speed(content, "f") == expected

    @pytest.mark.parametrize(
        ("operstate", "carrier", "expected"),
        [
            ("up", None, True),
            ("down", "1", False),
            ("dormant", "1", False),
            ("unknown", "1", True),
            ("unknown", "0", False),
            ("unknown", None, False),
            ("unknown", "x", None),
            ("unknown", "", None),
            ("", "1", None),
        ],
    )
    def test_state(self, operstate: str, carrier: str | None, expected: bool | None) -> None:
        assert network.is_up(operstate, carrier) is expected


class TestInfiniband:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"400 Gb/sec (4X NDR)\n", 50_000_000_000),
            (b"2.5 Gb/sec (1X SDR)\n", 312_500_000),
            (b"800 Gb/sec (4X XDR)\n", 100_000_000_000),
        ],
    )
    def test_rate(self, content: bytes, expected: int) -> None:
        assert network.parse_rate(content, "f") == expected

    def test_infiniband_octets_are_counted_in_units_of_four(self) -> None:
        assert network.parse_octets(b"5\n", "f") == 20
        with pytest.raises(WireError):
            network.parse_octets(str(2**62).encode(), "f")

    def test_port_interface_is_found_by_port_number(self) -> None:
        assert network.port_interface("2", {"eth2": "0", "eth3": "1"}, "wrong") == "eth3"

    def test_port_interface_of_a_bond_is_found_by_address(self) -> None:
        assert network.port_interface("1", {"eth2": "0", "eth3": "0"}, "bond0\n") == "bond0"

    def test_port_interface_without_evidence_is_empty(self) -> None:
        assert network.port_interface("1", {}, "") == ""


class TestIdentity:
    @pytest.mark.parametrize(
        "value",
        [
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "03000200-0400-0500-0006-000700080009",
            "00020003-0004-0005-0006-000700080009",
            "fefefefe-fefe-fefe-fefe-fefefefefefe",
            "Not Settable",
            "4c4c454400513510805 2b7c04f323434",
            "",
        ],
    )
    def test_placeholder_system_uuids_are_rejected(self, value: str) -> None:
        with pytest.raises(WireError):
            identity.parse_system_uuid(value.encode(), "f")

    @given(st.uuids())
    def test_system_uuid_is_lower_case(self, value: uuid.UUID) -> None:
        assert identity.parse_system_uuid(str(value).upper().encode() + b"\n", "f") == str(value)

    @pytest.mark.parametrize("value", ["", "uninitialized", "0" * 32, "a" * 31, "g" * 32])
    def test_invalid_machine_ids_are_rejected(self, value: str) -> None:
        with pytest.raises(WireError):
            identity.parse_machine_id(value.encode(), "f")

    def test_os_names_are_unquoted(self) -> None:
        assert identity.parse_os_name(b'# x\nNAME=A\nPRETTY_NAME="A \\"B\\" 1"\n', "f") == 'A "B" 1'


class TestServices:
    KUBELET = next(service for service in services.SERVICES if service.name == "kubelet")
    FABRIC = next(service for service in services.SERVICES if service.name == "nvidia-fabricmanager")

    def test_service_names_are_compared_truncated(self) -> None:
        table = services.build_processes({2: ("kthreadd", "S"), 9: ("nv-fabricmanage", "S")})
        assert services.service_state(self.FABRIC, table, frozenset()) == "running"

    def test_zombie_is_not_running(self) -> None:
        table = services.build_processes({2: ("kthreadd", "S"), 9: ("kubelet", "Z")})
        assert services.service_state(self.KUBELET, table, frozenset({"kubelet"})) == "not_running"

    def test_service_state_is_unknown_if_processes_are_hidden(self) -> None:
        table = services.build_processes({1: ("agent", "S")})
        assert services.service_state(self.KUBELET, table, frozenset({"kubelet"})) is None

    def test_visible_service_is_running_despite_hidden_processes(self) -> None:
        table = services.build_processes({1: ("systemd", "S"), 9: ("kubelet", "S")})
        assert services.service_state(self.KUBELET, table, None) == "running"

    @given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\n\r"), max_size=15))
    def test_process_stat_with_any_name(self, name: str) -> None:
        got, state = services.parse_process_stat(f"7 ({name}) S 1 2 3\n".encode(), "f")
        assert (got, state) == (text.printable(name), "S")


class TestVirtualization:
    @pytest.mark.parametrize(
        ("evidence", "expected"),
        [
            (identity.MachineEvidence(flags=frozenset({"vmx"}), vendor="Amazon EC2"), "none"),
            (identity.MachineEvidence(flags=frozenset({"hypervisor"}), vendor="Amazon EC2"), "amazon"),
            (identity.MachineEvidence(flags=frozenset({"hypervisor"}), vendor="QEMU"), "qemu"),
            (
                identity.MachineEvidence(
                    flags=frozenset({"hypervisor"}), vendor="QEMU", clocks=frozenset({"kvm-clock"})
                ),
                "kvm",
            ),
            (identity.MachineEvidence(flags=frozenset({"hypervisor"})), "other"),
            (identity.MachineEvidence(flags=None, vendor="QEMU"), "qemu"),
            (identity.MachineEvidence(flags=None, vendor="Amazon EC2"), None),
            (identity.MachineEvidence(flags=None, vendor="NVIDIA"), None),
            (identity.MachineEvidence(flags=frozenset({"hypervisor"}), hypervisor="xen"), "xen"),
        ],
    )
    def test_machines(self, evidence: identity.MachineEvidence, expected: str | None) -> None:
        assert identity.detect_virtualization(evidence) == expected

    @pytest.mark.parametrize(
        ("evidence", "expected"),
        [
            (identity.ContainerEvidence(systemd="lxc"), "lxc"),
            (identity.ContainerEvidence(has_dockerenv=True, sees_kernel=True, root_fstype="ext4"), "none"),
            (identity.ContainerEvidence(has_dockerenv=True, sees_kernel=True, root_fstype="overlay"), "docker"),
            (identity.ContainerEvidence(mount_roots=("/var/lib/kubelet/pods/u/etc-hosts",)), "kubernetes"),
            (identity.ContainerEvidence(cgroups="0::/kubepods.slice/cri-containerd-1.scope"), "kubernetes"),
            (identity.ContainerEvidence(sees_kernel=True, root_fstype="xfs", cgroups="0::/docker/x"), "none"),
            (identity.ContainerEvidence(root_fstype="overlay"), "other"),
            (identity.ContainerEvidence(root_fstype="overlay", sees_kernel=True), "none"),
            (identity.ContainerEvidence(root_fstype="ext4", is_hiding=True), None),
            (identity.ContainerEvidence(root_fstype="ext4", sees_kernel=True), "none"),
        ],
    )
    def test_containers(self, evidence: identity.ContainerEvidence, expected: str | None) -> None:
        assert identity.detect_container(evidence) == expected

    def test_container_variable_of_an_environment(self) -> None:
        assert identity.parse_container_variable(b"TOKEN=x\0container=podman\0A=b") == "podman"
        assert identity.parse_container_variable(b"mycontainer=x\0") == ""


def test_underlying_device_of_a_partition_is_its_disk() -> None:
    part = storage.BlockDevice(name="sda3", link="../../devices/x/block/sda/sda3", is_partition=True, parts=())
    assert storage.underlying_devices(part) == ("sda",)
