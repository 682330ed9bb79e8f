"""Which virtual machines are read, over which channel, and why others are not."""

from typing import Any

import pytest

from gpufleet.config.guests import Channel, DcgmChannel, QemuAgentChannel, SshChannel
from gpufleet.config.kubevirt import KubevirtConfig, VmiSshConfig
from gpufleet.holders.kubevirt.decisions import (
    ANNOTATION,
    Conflicts,
    describe_vmi,
    has_vsock_consent,
    launcher_pods,
    vmis_of_node,
)
from gpufleet.model.absence import Reason
from tests.holders.kubevirt.objects import A10, NODE, POD, UID, node_vmi, vmi_object

OPERATOR = KubevirtConfig(
    networks=("10.244.0.0/16", "fd00::/8"),
    ssh=VmiSshConfig(key_file="/etc/gpufleet/guest_key"),
    guest_agent_socket="/run/agents/{pod}/{namespace}-{name}-{uid}.sock",
)
OTHER = "0d6f3c5e-8a41-4f2b-9f0e-5b1f5f6d7a02"


def channels(settings: KubevirtConfig = OPERATOR, **fields: Any) -> tuple[Channel, ...]:
    one = node_vmi(vmi_object(**fields))
    found = describe_vmi(one, NODE, settings, Conflicts.of([one]))
    assert found is not None
    assert (found.details.unread is None) is bool(found.guest.channels)
    return found.guest.channels


def reason(settings: KubevirtConfig = OPERATOR, **fields: Any) -> Reason:
    one = node_vmi(vmi_object(**fields))
    found = describe_vmi(one, NODE, settings, Conflicts.of([one]))
    assert found is not None
    assert found.details.unread is not None
    assert found.guest.channels == ()
    return found.details.unread.reason


def test_annotation_and_vsock_together_are_the_consent() -> None:
    assert channels() == (DcgmChannel(address="vsock://42:5555"),)
    assert channels(KubevirtConfig(dcgm_port=6000)) == (DcgmChannel(address="vsock://42:6000"),)
    for fields in ({"annotation": None}, {"vsock": False}, {"cid": None}, {"cid": 2}):
        assert reason(**fields) is Reason.NOT_ENABLED
        assert not has_vsock_consent(node_vmi(vmi_object(**fields)).vmi)
    assert has_vsock_consent(node_vmi(vmi_object()).vmi)
    assert not has_vsock_consent(node_vmi(vmi_object(annotation="ssh")).vmi)


def test_other_access_paths_follow_the_annotation() -> None:
    fields: dict[str, Any] = {"vsock": False, "cid": None}
    assert channels(annotation="dcgm-tcp", **fields) == (DcgmChannel(address="tcp://10.244.0.7:5555"),)
    assert channels(annotation="dcgm-tcp", address="fd00::7") == (DcgmChannel(address="tcp://[fd00::7]:5555"),)
    assert channels(annotation="ssh", **fields) == (
        SshChannel(address="10.244.0.7:22", user="gpufleet", key_file="/etc/gpufleet/guest_key"),
    )
    socket = f"/run/agents/{POD}/ml-train-0-{UID}.sock"
    assert channels(annotation="qemu-agent", **fields) == (QemuAgentChannel(socket=socket),)


@pytest.mark.parametrize("annotation", ["dcgm-tcp", "ssh", "qemu-agent"])
def test_other_access_paths_need_the_operator(annotation: str) -> None:
    assert reason(KubevirtConfig(), annotation=annotation) is Reason.NOT_ENABLED


@pytest.mark.parametrize("address", ["", "192.168.0.7", "127.0.0.1", "169.254.169.254", "localhost"])
def test_address_outside_the_networks_is_not_dialled(address: str) -> None:
    """A guest agent can report any address."""
    assert reason(annotation="ssh", address=address) is Reason.NOT_ENABLED
    assert reason(annotation="dcgm-tcp", address=address) is Reason.NOT_ENABLED


@pytest.mark.parametrize(
    "value",
    ["", "true", "DCGM-VSOCK", "dcgm-vsock ", "vsock://2:22", "../../x", "\x1b[31m", "x" * 5000],
)
def test_unknown_annotation_is_left_alone(value: str) -> None:
    one = node_vmi(vmi_object(annotation=value))
    found = describe_vmi(one, NODE, OPERATOR, Conflicts())
    assert found is not None
    assert found.details.unread is not None
    assert found.details.unread.reason is Reason.NOT_ENABLED
    assert found.details.unread.detail.isprintable()
    assert len(found.details.unread.detail) < 300


def test_windows_and_other_vendors_are_left_alone() -> None:
    assert reason(os="mswindows") is Reason.NOT_ENABLED
    assert reason(gpus=("amd.com/MI300X",)) is Reason.NO_SUPPORTED_GPU
    assert reason(gpus=("gpu.intel.com/i915",), annotation=None) is Reason.NO_SUPPORTED_GPU


def test_machine_without_gpu_is_not_listed() -> None:
    one = node_vmi(vmi_object(gpus=(), host_devices=("mellanox.com/CX7", "vendor/nvme")))
    assert describe_vmi(one, NODE, OPERATOR, Conflicts()) is None


@pytest.mark.parametrize(
    ("gpus", "host_devices", "expected"),
    [
        *(((A10, A10), (), 2), ((A10, "amd.com/MI300X"), (), 1)),
        *(((A10,), ("nvidia.com/GH100_NVSWITCH",), 1), ((A10,), ("nvidia.com/GH100_H100_SXM5_80GB",), None)),
    ],
)
def test_expected_gpus(gpus: tuple[str, ...], host_devices: tuple[str, ...], expected: int | None) -> None:
    one = node_vmi(vmi_object(gpus=gpus, host_devices=host_devices))
    found = describe_vmi(one, NODE, OPERATOR, Conflicts())
    assert found is not None
    assert found.guest.gpus == expected


def test_shared_cid_or_address_is_a_conflict() -> None:
    """Neither of two candidates is dialled."""
    for annotation in ("dcgm-vsock", "dcgm-tcp"):
        both = [
            node_vmi(vmi_object(annotation=annotation)),
            node_vmi(vmi_object("eval-0", uid=OTHER, annotation=annotation)),
        ]
        for one in both:
            found = describe_vmi(one, NODE, OPERATOR, Conflicts.of(both))
            assert found is not None
            assert found.guest.channels == ()


def test_identity_is_that_of_the_object() -> None:
    one = node_vmi(vmi_object(labels={"team": "blue", "secret": "x"}))
    found = describe_vmi(one, NODE, OPERATOR, Conflicts())
    assert found is not None
    assert (found.guest.title, found.guest.uid) == ("ml/train-0", UID)
    assert found.details.labels == {"team": "blue"}


@pytest.mark.parametrize("fields", [{"uid": "not-a-uid"}, {"uid": "../x"}, {"name": "a/b"}, {"namespace": "A"}])
def test_invalid_identity_is_an_error(fields: dict[str, str]) -> None:
    one = node_vmi(vmi_object(**fields))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="uid"):
        describe_vmi(one, NODE, OPERATOR, Conflicts())


@pytest.mark.parametrize(
    ("node", "phase", "expected"),
    [
        (NODE, "Running", True),
        (NODE, "Scheduled", True),
        (NODE, "Succeeded", False),
        (NODE, "Failed", False),
        ("", "Pending", False),
        ("gpu-2", "Running", False),
    ],
)
def test_machines_of_the_node(node: str, phase: str, expected: bool) -> None:
    assert bool(vmis_of_node([node_vmi(vmi_object(node=node, phase=phase))], NODE)) is expected


def test_launcher_pods_are_those_of_the_node() -> None:
    other = POD[:-1] + "2"
    one = node_vmi(vmi_object(pods={POD: NODE, other: "gpu-2", "../../etc": NODE}))
    assert launcher_pods(one.vmi, NODE) == (POD,)


def test_annotation_is_that_of_the_proposal() -> None:
    assert ANNOTATION == "kubevirt.io/gpu-metrics-collector"
