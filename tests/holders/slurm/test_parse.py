"""Parsers of SLURM's output: recorded answers of SLURM 22.05.8, other forms, hostile texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.slurm.parse import (
    MAX_INDEXES,
    gres_on,
    parse_config,
    parse_gres,
    parse_job,
    parse_listing,
    parse_names,
    parse_node,
)
from gpufleet.holders.slurm.records import ClusterConfig, GresUse, ListedJob
from gpufleet.model.errors import WireError
from tests.holders.slurm.recorded import DELIMITER, listing, plain, text

A, B = "gpu-a100-01", "gpu-a100-02"


def test_job_on_two_nodes_has_its_gpus_on_each() -> None:
    job = parse_job(text("job-two-nodes"), listing()[1])
    assert [hosts for hosts, _ in job.gres] == ["gpu-a100-[01-02]"]
    assert gres_on(job, A) == gres_on(job, B) == (GresUse("gpu", "h100", 1, (0,)),)
    assert gres_on(job, "gpu-a100-03") == ()
    assert (job.gpus, job.nodes, job.user, job.partition, job.state) == (2, 2, "root", "batch", "RUNNING")
    assert job.started == 1_000_000_000 * int(text("job-two-nodes").split(b" StartTime=")[1].split()[0])


def test_texts_of_a_user_forge_no_field() -> None:
    listed = listing()[2]
    job = parse_job(text("job-hostile"), listed)
    assert listed.name.startswith("x\nJobId=99 ")
    assert gres_on(job, A) == (GresUse("gpu", "h100", 2, (1, 2)),)
    assert (job.listed.id, job.user, job.gpus) == (2, "root", 2)
    with pytest.raises(WireError):
        parse_job(text("job-hostile"), plain(2, "x"))
    with pytest.raises(WireError):
        parse_job(text("job-hostile"), plain(99, "y"))


def test_array_task_component_and_processor_job() -> None:
    task = parse_job(text("job-array"), listing()[3])
    assert (task.array_job, task.array_task, gres_on(task, A)) == ("3", "7", (GresUse("gpu", "h100", 1, (3,)),))
    number = int(text("job-het").split()[0].removeprefix(b"JobId="))
    component = parse_job(text("job-het"), plain(number, "het"))
    assert (component.het_job, component.het_offset) == (str(number - 1), "1")
    assert gres_on(component, B) == (GresUse("gpu", "h100", 2, (0, 1)),)
    assert gres_on(parse_job(text("job-without-gpu"), listing()[4]), A) == ()


def test_completing_job_has_no_gres() -> None:
    number = int(text("job-completing").split()[0].removeprefix(b"JobId="))
    job = parse_job(text("job-completing"), plain(number, "het"))
    assert (job.state, gres_on(job, A)) == ("COMPLETING", ())
    node = parse_node(text("node-completing"), A)
    assert (node.completing, node.used) == (True, (GresUse("gpu", "h100", 0), GresUse("shard", "", 0)))


def test_local_time_without_zone_is_not_used() -> None:
    data = text("job-shard").replace(b" StartTime=", b" StartTime=2026-11-22T22:47:01 X=")
    number = int(data.split()[0].removeprefix(b"JobId="))
    assert parse_job(data, plain(number, "wrap")).started is None


def test_node_has_configured_and_used_gpus() -> None:
    busy = parse_node(text("node-busy"), A)
    assert busy.configured == (GresUse("gpu", "h100", 4),)
    assert busy.used is not None
    assert busy.used[0] == GresUse("gpu", "h100", 4, (0, 1, 2, 3))
    assert not busy.completing
    with pytest.raises(WireError):
        parse_node(text("node-busy"), B)


def test_listing_needs_all_fields() -> None:
    assert [job.selector for job in listing().values()] == ["1", "2", "3_7", "4"]
    assert parse_listing(b"", DELIMITER) == ()
    with pytest.raises(WireError):
        parse_listing(text("listing")[:-8], DELIMITER)
    with pytest.raises(WireError):
        parse_listing(text("listing").replace(b"3_7", b"3;rm"), DELIMITER)


def test_names_and_folder() -> None:
    assert parse_names(text("aliases")) == (A, B, "mixed1")
    assert parse_names(b"\n") == ()
    assert parse_config(text("config")) == ClusterConfig("test", "/srv/slurm")
    assert parse_config(b"ClusterName = HPC-Nord\nSLURM_CONF = (null)\n") == ClusterConfig("hpc-nord", "")
    assert parse_config(b"ClusterName = (null)\n") == parse_config(b"ClusterName = a/b\n") == ClusterConfig()


@pytest.mark.parametrize(
    ("written", "items"),
    [
        ("gpu:2", (GresUse("gpu", "", 2),)),
        ("gpu:nvidia_h100-80gb.x:16(IDX:0-7,9)", (GresUse("gpu", "nvidia_h100-80gb.x", 16, (*range(8), 9)),)),
        ("gpu:1g.5gb:2(IDX:3-4),gpu:a:1(IDX:N/A)", (GresUse("gpu", "1g.5gb", 2, (3, 4)), GresUse("gpu", "a", 1))),
        ("gpu:h100:4(S:0-1)", (GresUse("gpu", "h100", 4),)),
        ("gpu:2(CNT:2)", (GresUse("gpu", "", 2),)),
        ("shard:h100:3(0/8,2/8,1/8)", (GresUse("shard", "h100", 3, (1, 2), (2, 1)),)),
        ("bandwidth:lustre:4G,gpu:1(IDX:5)", (GresUse("gpu", "", 1, (5,)),)),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_gres_forms(written: str, items: tuple[GresUse, ...]) -> None:
    assert parse_gres(written) == items


@pytest.mark.parametrize("written", ["gpu:1(IDX:3-1)", "gpu:1(IDX:0-999999)", "gpu:1(IDX:a)", "gpu:1(IDX:0", "(("])
def test_malformed_gres_is_an_error(written: str) -> None:
    with pytest.raises(WireError):
        parse_gres(written)


@given(st.sets(st.integers(0, 300), min_size=1, max_size=60))
def test_index_ranges_have_each_index(indexes: set[int]) -> None:
    ordered = sorted(indexes)
    pieces: list[str] = []
    for start in [index for index in ordered if index - 1 not in indexes]:
        end = start
        while end + 1 in indexes:
            end += 1
        pieces.append(str(start) if start == end else f"{start}-{end}")
    (item,) = parse_gres(f"gpu:t:{len(indexes)}(IDX:{','.join(pieces)})")
    assert item == GresUse("gpu", "t", len(indexes), tuple(ordered))


@given(st.text("gpu:h10(IDX-,)/ \n", max_size=60) | st.text(max_size=60))
def test_any_gres_text_is_bounded_or_a_wire_error(written: str) -> None:
    try:
        items = parse_gres(written)
    except WireError:
        return
    assert all(len(item.indexes) <= MAX_INDEXES for item in items)


@given(
    st.text(max_size=80) | st.just(" UserId=root(0) GroupId=root(0) Account=x QOS=y JobState=RUNNING "),
    st.text(max_size=80) | st.just(f"a QOS=(null) JobState=RUNNING Nodes={A} CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)"),
    st.text(max_size=80) | st.just("\nJobId=2 JobName=x"),
)
def test_no_choice_of_texts_changes_the_gpus(name: str, account: str, comment: str) -> None:
    listed = ListedJob(2, "2", account, "(null)", name)
    printed = (
        f"JobId=2 JobName={name} UserId=alice(1001) GroupId=g(1) MCS_label=N/A Nice=0 Account={account} QOS=q "
        f"JobState=RUNNING Reason=None StartTime=5 Partition=p NumNodes=1-1 JOB_GRES=gpu:1   Nodes={B} CPU_IDs=0 Mem=0 "
        f"GRES=gpu:1(IDX:3) MinCPUsNode=1 Command={comment} WorkDir=/ Comment={comment} \n"
    )
    job = parse_job(printed.encode("utf-8", "surrogatepass"), listed)
    assert (job.user, job.state, job.gpus, job.started) == ("alice", "RUNNING", 1, 5_000_000_000)
    assert (gres_on(job, A), gres_on(job, B)) == ((), (GresUse("gpu", "", 1, (3,)),))


@pytest.mark.parametrize(
    ("printed", "user"),
    [("alice(1001)", "alice"), ("nobody(1001)", ""), ("nobody(65534)", "nobody"), ("nobody(99)", "nobody")],
)
def test_user_without_a_name_on_this_machine_is_unknown(printed: str, user: str) -> None:
    job = f"JobId=2 JobName=x UserId={printed} GroupId=g(1) MCS_label=N/A Nice=0 Account=a QOS=q JobState=RUNNING "
    assert parse_job(job.encode(), ListedJob(2, "2", "a", "(null)", "x")).user == user


@given(st.binary(max_size=200), st.integers(0, 1200), st.integers(0, 1200))
def test_damaged_job_is_parsed_or_a_wire_error(noise: bytes, start: int, end: int) -> None:
    whole = text("job-two-nodes")
    try:
        job = parse_job(whole[:start] + noise + whole[end:], listing()[1])
    except WireError:
        return
    assert job.listed.id == 1
