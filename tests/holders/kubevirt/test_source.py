"""Listing of the virtual machines of a node, and lookups at each dial."""

from typing import Any, NoReturn

import pytest

from gpufleet.config.kubevirt import KubevirtConfig
from gpufleet.holders.kubevirt.parse import NodeVmi
from gpufleet.holders.kubevirt.source import KubevirtSource
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.model.kubernetes import CopyState, CopyStatus
from tests.holders.kubevirt.objects import CID, NODE, POD, UID, node_vmi, vmi_object

OTHER = "0d6f3c5e-8a41-4f2b-9f0e-5b1f5f6d7a02"


class FakeCopy:
    """Copy with given objects."""

    def __init__(self, *contents: dict[str, Any]) -> None:
        self.records: dict[str, NodeVmi] = {}
        self.rejected: tuple[str, ...] = ()
        self.status = CopyStatus(resource="virtualmachineinstances.kubevirt.io", state=CopyState.SYNCED, since=0)
        self.put(*contents)

    def put(self, *contents: dict[str, Any]) -> None:
        self.records = {one["metadata"]["uid"]: node_vmi(one) for one in contents}

    async def run(self) -> NoReturn:
        raise NotImplementedError


def source(copy: FakeCopy) -> KubevirtSource:
    return KubevirtSource(copy, NODE, KubevirtConfig())


async def test_machines_with_gpus_are_listed_with_the_reason_of_those_not_read() -> None:
    copy = FakeCopy(vmi_object(), vmi_object("eval-0", uid=OTHER, annotation=None, cid=43))
    listing = await source(copy).list_guests()
    assert {label: guest.uid for label, guest in listing.guests.items()} == {"ml/train-0": UID, "ml/eval-0": OTHER}
    assert listing.details["ml/train-0"].unread is None
    assert listing.details["ml/eval-0"].unread is not None
    assert listing.problems == {}


async def test_invalid_object_affects_only_itself() -> None:
    bad = vmi_object("bad", uid="nonsense", cid=43)
    copy = FakeCopy(vmi_object(), bad)
    listing = await source(copy).list_guests()
    assert list(listing.guests) == ["ml/train-0"]
    assert list(listing.problems) == ["ml/bad"]


@pytest.mark.parametrize("state", [CopyState.FORBIDDEN, CopyState.NOT_SERVED, CopyState.STALE])
async def test_outage_keeps_the_machines_and_is_reported(state: CopyState) -> None:
    copy = FakeCopy(vmi_object())
    copy.status = CopyStatus(resource="virtualmachineinstances.kubevirt.io", state=state, since=0, detail="no")
    listing = await source(copy).list_guests()
    assert list(listing.guests) == ["ml/train-0"]
    assert list(listing.problems) == ["virtualmachineinstances.kubevirt.io"]


async def test_migration_and_deletion_end_the_guest() -> None:
    copy = FakeCopy(vmi_object())
    listed = source(copy)
    assert list((await listed.list_guests()).guests) == ["ml/train-0"]
    copy.put(vmi_object(node="gpu-2", pods={POD[:-1] + "2": "gpu-2"}))
    assert (await listed.list_guests()).guests == {}
    with pytest.raises(ChannelError) as moved:
        listed.vsock_target(UID)
    assert moved.value.problem is ChannelProblem.NO_SUCH_VM
    copy.put()
    with pytest.raises(ChannelError) as deleted:
        listed.vsock_target(UID)
    assert deleted.value.problem is ChannelProblem.NO_SUCH_VM


async def test_restarted_machine_is_another_guest() -> None:
    copy = FakeCopy(vmi_object())
    listed = source(copy)
    (first,) = (await listed.list_guests()).guests.values()
    copy.put(vmi_object(uid=OTHER))
    (second,) = (await listed.list_guests()).guests.values()
    assert first.title == second.title
    assert first.uid != second.uid
    assert (listed.lists(first), listed.lists(second)) == (False, True)


def test_consent_is_looked_up_at_each_dial() -> None:
    copy = FakeCopy(vmi_object())
    listed = source(copy)
    target = listed.vsock_target(UID)
    assert (target.cid, target.pods, target.name) == (CID, (POD,), "train-0")
    copy.put(vmi_object(annotation=None))
    with pytest.raises(ChannelError) as withdrawn:
        listed.vsock_target(UID)
    assert withdrawn.value.problem is ChannelProblem.NOT_ENABLED
    copy.put(vmi_object(), vmi_object("eval-0", uid=OTHER))
    with pytest.raises(ChannelError) as conflict:
        listed.vsock_target(UID)
    assert conflict.value.problem is ChannelProblem.NOT_ENABLED
