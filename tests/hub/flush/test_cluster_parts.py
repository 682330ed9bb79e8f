"""Objects of a Kubernetes cluster at flush: clean texts, and only objects with an identity."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.hub.flush.cluster_parts import MAX_TEXT, clean_cluster_part
from gpufleet.hub.flush.normalise import normalise
from gpufleet.model.kubernetes import ClusterNode, CopyState, CopyStatus
from gpufleet.model.wire.batch import ClusterPart, RemovedObject
from tests.codecs.batch.cluster_parts import NOW, PART
from tests.support.cluster_objects import accept_part, pod
from tests.support.holdings import HOSTILE, T0


def test_valid_part_is_unchanged() -> None:
    assert clean_cluster_part(PART, NOW) == (PART, 0)
    batch = accept_part("c", PART, at=NOW).batch
    found = normalise(batch, NOW)
    assert (found.batch, found.dropped_objects) == (batch, 0)


def test_texts_are_cleaned_and_cut() -> None:
    part = ClusterPart(
        observed_at=T0,
        server_version="v1\x1b",
        copies=[CopyStatus(resource="pods", state=CopyState.STALE, since=T0, detail="no\nanswer")],
        pods=[pod("p", queue="a\x07\u202e", labels={"k\x00": "v" * 5000, "m\u200b": "\u2066"})],
    )
    found = clean_cluster_part(part, T0).part
    assert (found.server_version, found.copies[0].detail, found.pods[0].queue) == ("v1", "noanswer", "a?")
    assert {key: len(text) for key, text in found.pods[0].labels.items()} == {"k": MAX_TEXT, "m?": 1}


def test_object_without_identity_is_dropped_alone() -> None:
    bad = [pod("a/b"), pod("x\x1b"), pod("z", namespace="")]
    bad += [pod("y", name="n\x1b"), pod("w", name="n\u202e"), pod("v", name="n" * 254)]
    part = ClusterPart(
        observed_at=T0,
        nodes=[ClusterNode(uid="n/1", name="n")],
        pods=[*bad, pod("p"), pod("p", phase="Running")],
        removed=[RemovedObject("secrets", "u", T0), RemovedObject("pods", "u", T0), RemovedObject("pods", "u", T0 + 1)],
    )
    found = clean_cluster_part(part, T0 + 1)
    assert (found.part.pods, found.part.nodes) == ([pod("p", phase="Running")], [])
    assert found.part.removed == [RemovedObject("pods", "u", T0 + 1)]
    assert found.dropped == len(bad) + 1 + 1 + 2


def test_state_of_the_future_counts_as_of_its_receipt() -> None:
    assert clean_cluster_part(ClusterPart(observed_at=T0 + 5), T0).part.observed_at == T0


def test_instants_of_the_future_count_as_of_their_receipt() -> None:
    copies = [CopyStatus(resource="pods", state=CopyState.STALE, since=at) for at in (2**63 - 1, T0 - 1)]
    removed = [RemovedObject("pods", "u", 2**63 - 1), RemovedObject("pods", "v", T0 - 1)]
    found = clean_cluster_part(ClusterPart(observed_at=T0, copies=copies, removed=removed), T0)
    assert [one.since for one in found.part.copies] == [T0, T0 - 1]
    assert [one.at for one in found.part.removed] == [T0, T0 - 1]
    assert found.dropped == 0


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=2000), uid=st.text(max_size=300))
def test_cleaning_twice_changes_nothing(text: str, uid: str) -> None:
    objects = [pod(uid, queue=text, labels={text: HOSTILE}), pod("p", phase=text)]
    once = clean_cluster_part(ClusterPart(observed_at=T0, pods=objects), T0).part
    assert clean_cluster_part(once, T0) == (once, 0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(once), type=ClusterPart) == once
