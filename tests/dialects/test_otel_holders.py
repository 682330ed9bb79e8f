"""OTLP attributes of holders: names of the conventions, bounded labels, no collision with other attributes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.dialects.l9gpu import JOB
from gpufleet.dialects.otel import DEVICE_ATTRIBUTES
from gpufleet.dialects.otel_holders import (
    MAX_NAME_BYTES,
    MAX_POD_LABELS,
    MAX_TEXT,
    POD_LABEL,
    QUEUE,
    VM_NAME,
    VM_UUID,
    holder_attributes,
)
from gpufleet.model.holdings import MAX_LABELS, Holder, HolderKind, Owner
from tests.support.snapshots import holding

POD = Holder(kind=HolderKind.POD, id="uid-1", name="train-0", namespace="ml")


def pod(*owners: Owner, labels: dict[str, str] | None = None) -> dict[str, str]:
    return holder_attributes(holding(msgspec.structs.replace(POD, owners=owners, labels=labels or {})))


def test_pod_has_the_names_of_the_conventions() -> None:
    assert pod() == {
        "k8s.namespace.name": "ml",
        "k8s.pod.name": "train-0",
        "k8s.pod.uid": "uid-1",
        "k8s.container.name": "main",
    }


def test_unknown_uid_is_left_out() -> None:
    known = holder_attributes(holding(msgspec.structs.replace(POD, id="ml/train-0")))
    assert "k8s.pod.uid" not in known


REPLICAS = Owner(kind="ReplicaSet", name="web-5d", api_version="apps/v1")


@pytest.mark.parametrize(
    ("owners", "workload"),
    [
        ([Owner(kind="Job", name="a", api_version="batch/v1")], {"k8s.job.name": "a"}),
        ([Owner(kind="Job", name="a")], {"k8s.job.name": "a"}),
        ([Owner(kind="StatefulSet", name="b", api_version="apps/v1")], {"k8s.statefulset.name": "b"}),
        ([REPLICAS, Owner(kind="Deployment", name="web", api_version="apps/v1")], {"k8s.deployment.name": "web"}),
        ([REPLICAS], {}),
        (
            [Owner(kind="Job", name="a", api_version="batch/v1"), Owner(kind="Deployment", name="d")],
            {"k8s.job.name": "a"},
        ),
        ([Owner(kind="Job", name="a", api_version="batch.volcano.sh/v1alpha1")], {}),
        (
            [Owner(kind="Job", name="a", api_version="batch/v1"), Owner(kind="JobSet", name="set")],
            {"k8s.job.name": "a"},
        ),
    ],
)
def test_owner_is_the_last_of_the_chain(owners: list[Owner], workload: dict[str, str]) -> None:
    last = {"k8s.owner.kind": owners[-1].kind, "k8s.owner.name": owners[-1].name}
    assert pod(*owners).items() - pod().items() == (workload | last).items()


JOB_HOLDER = Holder(kind=HolderKind.JOB, id="12345", name="train", user="ann", queue="gpu", array_job="12340", nodes=2)


@pytest.mark.parametrize("job", [(), JOB], ids=["otel", "l9gpu"])
def test_pod_has_the_queue_of_its_scheduler(job: tuple[tuple[str, str], ...]) -> None:
    queued = holding(msgspec.structs.replace(POD, queue="research"))
    assert holder_attributes(queued, job).items() - pod().items() == {(QUEUE, "research")}


def test_job_has_names_of_its_own_dialect() -> None:
    job = holding(JOB_HOLDER)
    otel = {"job.id": "12345", "job.name": "train", "job.user": "ann", "job.partition": "gpu"}
    assert holder_attributes(job) == otel
    named = holding(msgspec.structs.replace(JOB_HOLDER, slurm_cluster="alpha"))
    assert holder_attributes(named) == otel | {"gpufleet.slurm.cluster": "alpha"}
    assert holder_attributes(job, JOB) == {
        "job_id": "12345",
        "job_name": "train",
        "username": "ann",
        "partition": "gpu",
        "array_job_id": "12340",
        "num_nodes": "2",
    }


def test_launcher_pod_has_the_names_of_its_machine() -> None:
    vm = Holder(kind=HolderKind.VM, id="6f1ed002", name="vm-0")
    known = holder_attributes(holding(POD, parent=vm))
    assert (known[VM_NAME], known[VM_UUID], known["k8s.pod.name"]) == ("vm-0", "6f1ed002", "train-0")
    assert known.items() >= holder_attributes(holding(vm)).items()


def test_container_outside_of_pods_has_id_and_name() -> None:
    container = Holder(kind=HolderKind.CONTAINER, id="0f3c", name="notebook")
    assert holder_attributes(holding(container)) == {"container.id": "0f3c", "container.name": "notebook"}


def test_pod_labels_are_limited_in_number_and_size() -> None:
    many = {f"key-{number:02}": str(number) for number in range(MAX_LABELS)}
    found = {name: text for name, text in pod(labels=many).items() if name.startswith(POD_LABEL)}
    assert found == {POD_LABEL + key: many[key] for key in sorted(many)[:MAX_POD_LABELS]}

    known = pod(
        labels={"x" * MAX_NAME_BYTES: "long name", "text": "y" * 2 * MAX_TEXT, "control": "a\x1b[31m", "bad\n": "key"}
    )
    assert len(known[f"{POD_LABEL}text"]) == MAX_TEXT
    assert known[f"{POD_LABEL}control"] == "a[31m"
    assert {name for name in known if name.startswith(POD_LABEL)} == {f"{POD_LABEL}text", f"{POD_LABEL}control"}


@given(
    st.dictionaries(
        st.text() | st.sampled_from(["k8s.pod.name", "hw.id", "job.id", ""]), st.text(), max_size=MAX_LABELS
    )
)
def test_pod_label_replaces_no_other_attribute(labels: dict[str, str]) -> None:
    known, without = pod(labels=labels), pod()
    assert known.items() >= without.items()
    assert all(name.startswith(POD_LABEL) and name != POD_LABEL for name in known.keys() - without.keys())
    assert not known.keys() & set(DEVICE_ATTRIBUTES)
