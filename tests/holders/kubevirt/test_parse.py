"""Fields of a VirtualMachineInstance for its node."""

from typing import Any

import msgspec
import pytest

from gpufleet.holders.kubevirt.parse import complete_vmi
from tests.holders.kubevirt.objects import node_vmi, vmi_object


def test_address_is_that_of_the_first_interface() -> None:
    assert node_vmi(vmi_object(address="10.244.0.7")).address == "10.244.0.7"
    assert node_vmi(vmi_object(address="FD00::0007")).address == "fd00::7"


def test_other_forms_of_an_address_are_equal() -> None:
    """A guest agent could claim the address of another machine in another form."""
    assert node_vmi(vmi_object(address="::ffff:10.244.0.7")).address == "10.244.0.7"


@pytest.mark.parametrize("address", ["", "localhost", "10.0.0.1; id", "10.0.0.1/8", "1" * 500, "fd00::7%1"])
def test_invalid_address_does_not_count(address: str) -> None:
    assert node_vmi(vmi_object(address=address)).address == ""


def test_windows_is_known_by_template_or_guest_agent() -> None:
    annotated, labelled = vmi_object(), vmi_object(labels={"os.template.kubevirt.io/win2k22": "true"})
    annotated["metadata"]["annotations"]["vm.kubevirt.io/os"] = "windows2k22"
    assert [node_vmi(one).is_windows for one in (vmi_object(os="mswindows"), annotated, labelled)] == [True] * 3
    assert not node_vmi(vmi_object(os="fedora", labels={"os.template.kubevirt.io/fedora36": "true"})).is_windows


def test_huge_pages_of_the_memory_are_read() -> None:
    backed, plain = vmi_object(), vmi_object()
    backed["spec"]["domain"]["memory"] = {"guest": "16Gi", "hugepages": {"pageSize": "1Gi"}}
    plain["spec"]["domain"]["memory"] = {"guest": "16Gi"}
    assert [node_vmi(one).hugepages for one in (backed, plain, vmi_object())] == [True, False, False]


@pytest.mark.parametrize("status", [{"interfaces": "x"}, {"interfaces": [{"ipAddress": 7}]}, {"guestOSInfo": []}])
def test_fields_of_another_type_are_an_error(status: dict[str, Any]) -> None:
    content = vmi_object()
    known = node_vmi(content).vmi
    content["status"] = status
    with pytest.raises(msgspec.DecodeError):
        complete_vmi(msgspec.json.encode(content), known)
