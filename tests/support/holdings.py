"""Random holdings with every field, for round trips."""

from hypothesis import strategies as st

from gpufleet.model.holdings import (
    HET_JOB,
    MAX_LABELS,
    MAX_OWNERS,
    CertainPeriod,
    Holder,
    HolderKind,
    Holding,
    HoldingVerdict,
    Owner,
    Share,
)
from gpufleet.model.time import LATEST, NANOS

T0 = 1_700_000_000 * NANOS
HOSTILE = "x' OR 1=1; -- \\ \n\t\0 {ids:Array(String)} %s \u202e \U0001f4a9"

TEXTS = st.sampled_from(["", "a", "b", "b/c", HOSTILE]) | st.text(max_size=8)
NAMES = st.sampled_from(["a", "b", HOSTILE.replace("\0", "")])
COUNTS = st.sampled_from([0, 1, 2**63 - 1])


def texts_by_name(limit: int) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(TEXTS, TEXTS, max_size=limit)


OWNERS = st.builds(Owner, kind=TEXTS | st.just(HET_JOB), name=TEXTS, uid=TEXTS, api_version=TEXTS)
PARENTS = st.builds(Holder, kind=st.sampled_from(HolderKind), id=NAMES, name=TEXTS, namespace=TEXTS)
HOLDERS = st.builds(
    Holder,
    kind=st.sampled_from(HolderKind),
    id=NAMES,
    name=TEXTS,
    namespace=TEXTS,
    owners=st.lists(OWNERS, max_size=2).map(tuple) | st.just((Owner(kind="k", name="n"),) * MAX_OWNERS),
    labels=texts_by_name(3) | st.just({str(number): HOSTILE for number in range(MAX_LABELS)}),
    annotations=texts_by_name(3),
    user=TEXTS,
    account=TEXTS,
    queue=TEXTS,
    qos=TEXTS,
    array_job=TEXTS,
    array_task=TEXTS,
    slurm_cluster=TEXTS,
    nodes=COUNTS,
    gpus=COUNTS,
)
HOLDINGS = st.builds(
    Holding,
    view=st.sampled_from(["gpu/GPU-1", "mig/instance/GPU-1/7"]),
    holder=HOLDERS,
    parent=st.none() | PARENTS,
    container=TEXTS,
    container_id=TEXTS,
    steps=st.lists(TEXTS, max_size=3).map(tuple),
    share=st.sampled_from(Share),
    replicas=COUNTS,
    total_replicas=COUNTS,
    claim=TEXTS,
    since=st.sampled_from([1, T0, T0 + 1, LATEST - 1]),
    until=st.none(),
    methods=st.lists(NAMES, max_size=3).map(tuple),
    verdict=st.sampled_from(HoldingVerdict),
    certain=st.none()
    | st.builds(CertainPeriod, verdict=st.sampled_from(HoldingVerdict), until=st.sampled_from([1, T0, LATEST - 1])),
)
