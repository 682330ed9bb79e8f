"""UIDs and container ids from the kubelet's folders."""

from gpufleet.holders.kubelet.folders import NodeFolders, PodIdentities
from gpufleet.holders.kubelet.parse import ListedPod

OLD, NEW = "22d54f99-e6f4-491c-8bd5-9e689d993bd9", "9b2d7a10-3c0c-44b5-a9f7-0a8a3f0a1c44"
FIRST, SECOND = "a" * 64, "b" * 64
POD = ListedPod("ml", "db-0")


def link(id_: str, uid: str, restarts: int, *, pod: str = "db-0") -> tuple[str, str]:
    return f"{pod}_ml_train-{id_}.log", f"/var/log/pods/ml_{pod}_{uid}/train/{restarts}.log"


def uid(folders: NodeFolders, *listed: ListedPod) -> str:
    return PodIdentities(folders, listed or [POD]).uid("ml", "db-0")


def test_uid_is_in_the_name_of_the_log_folder() -> None:
    assert uid(NodeFolders(pod_logs=(f"ml_db-0_{OLD}",))) == OLD
    assert uid(NodeFolders(pod_logs=(f"ml_db-0_{OLD}",), pods=frozenset({OLD}))) == OLD
    assert uid(NodeFolders(pod_logs=(f"team_db-0_{OLD}", "ml_db-0", "x"))) == ""


def test_uid_of_a_static_pod_is_the_hash_of_its_manifest() -> None:
    assert (
        uid(NodeFolders(pod_logs=("ml_db-0_2fd565ea4947ead3f326d01d3b4324bf",))) == "2fd565ea4947ead3f326d01d3b4324bf"
    )


def test_log_folder_of_a_predecessor_is_not_the_pods() -> None:
    logs = (f"ml_db-0_{OLD}", f"ml_db-0_{NEW}")
    assert uid(NodeFolders(pod_logs=logs, pods=frozenset({NEW}))) == NEW
    assert uid(NodeFolders(pod_logs=logs, pods=frozenset({OLD, NEW}))) == ""
    assert uid(NodeFolders(pod_logs=logs)) == ""
    assert uid(NodeFolders(pod_logs=logs[:1], pods=frozenset({NEW}))) == ""


def test_two_listed_pods_of_one_name_have_no_uid() -> None:
    folders = NodeFolders(pod_logs=(f"ml_db-0_{OLD}",), pods=frozenset({OLD, NEW}))
    assert uid(folders, POD, POD) == ""


def test_container_id_is_that_of_the_newest_link() -> None:
    folders = NodeFolders(container_logs=(link(FIRST, OLD, 9), link(SECOND, OLD, 10)))
    assert PodIdentities(folders, [POD]).container_id(OLD, "train") == SECOND


def test_container_of_a_predecessor_is_not_the_pods() -> None:
    identities = PodIdentities(NodeFolders(container_logs=(link(FIRST, OLD, 5),)), [POD])
    assert identities.container_id(NEW, "train") == ""
    assert identities.container_id(OLD, "other") == ""


def test_links_that_contradict_give_no_container_id() -> None:
    same_count = NodeFolders(container_logs=(link(FIRST, OLD, 0), link(SECOND, OLD, 0)))
    assert PodIdentities(same_count, [POD]).container_id(OLD, "train") == ""
    other_pod = (link(FIRST, OLD, 0)[0], link(FIRST, OLD, 0, pod="web-1")[1])
    cut = (f"db-0_ml_train-{FIRST[:20]}.log", link(FIRST, OLD, 0)[1])
    assert PodIdentities(NodeFolders(container_logs=(other_pod, cut)), [POD]).container_id(OLD, "train") == ""
