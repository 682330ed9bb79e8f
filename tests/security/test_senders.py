"""Sender tokens: post for their own cluster only."""

from pathlib import Path

from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, pack
from gpufleet.config.hub import IngestConfig
from gpufleet.model.access import Role
from gpufleet.model.machine import Machine
from tests.fakes.batches import body
from tests.security.guarded import Guarded, guarded
from tests.support.waiting import wait_until_async
from tests.web.hub.site import now


async def test_sender_posts_for_its_own_cluster(site: Guarded) -> None:
    reply = await site.post(body(1, now()), site.secrets[Role.SENDER])
    assert (reply.status, reply.document["status"]) == (200, "accepted")


async def test_only_senders_post_batches(site: Guarded) -> None:
    assert (await site.post(body(1, now()), None)).error == "no_token"
    for role in (Role.TENANT, Role.OPERATOR, Role.ADMIN):
        reply = await site.post(body(1, now()), site.secrets[role])
        assert (reply.status, reply.error) == (403, "forbidden")


async def test_batch_of_another_cluster_is_refused(site: Guarded) -> None:
    admin = site.secrets[Role.ADMIN]
    assert (await site.request("/v1/clusters/theirs", admin, "PUT", {"team": "them"})).status == 201
    sender = site.secrets[Role.SENDER]
    registered = await site.post(body(1, now(), cluster="theirs"), sender)
    assert (registered.status, registered.error, registered.document["field"]) == (403, "other_cluster", "cluster")
    unknown = await site.post(body(1, now(), cluster="absent"), sender)
    assert unknown.body == registered.body.replace(b"theirs", b"absent")  # does not reveal whether the cluster exists


async def test_token_of_another_cluster_is_refused(site: Guarded) -> None:
    _, theirs = await site.make(Role.SENDER, cluster="theirs")
    assert (await site.post(body(1, now()), theirs)).error == "other_cluster"


async def test_unregistered_cluster_has_its_own_error(site: Guarded) -> None:
    _, theirs = await site.make(Role.SENDER, cluster="theirs")
    batch = body(1, now(), cluster="theirs")
    refused = await site.post(batch, theirs)
    assert (refused.status, refused.error) == (403, "foreign_cluster")
    admin = site.secrets[Role.ADMIN]
    assert (await site.request("/v1/clusters/theirs", admin, "PUT", {})).status == 201
    assert (await site.post(batch, theirs)).status == 200
    assert (await site.request("/v1/clusters/theirs", admin, "DELETE")).status == 200
    assert (await site.post(body(2, now(), cluster="theirs"), theirs)).error == "foreign_cluster"


async def test_refused_batch_is_not_stored(site: Guarded) -> None:
    await site.post(body(1, now(), cluster="absent"), site.secrets[Role.SENDER])
    await site.post(body(1, now()), site.secrets[Role.SENDER])
    senders = (await site.request("/metrics", site.secrets[Role.OPERATOR])).body.decode()
    assert "gpufleet_hub_accepted_batches_total 1\n" in senders
    assert 'gpufleet_hub_rejected_batches_total{reason="other_cluster"} 1\n' in senders


async def test_bundle_is_checked_per_batch(site: Guarded) -> None:
    admin = site.secrets[Role.ADMIN]
    assert (await site.request("/v1/clusters/theirs", admin, "PUT", {})).status == 201
    bodies = [body(1, now(), cluster="theirs"), body(1, now()), body(2, now(), cluster="absent"), body(2, now())]
    bundle, headers = pack(bodies), {"Content-Type": BUNDLE_CONTENT_TYPE}
    reply = await site.request("/v1/batches", site.secrets[Role.SENDER], "POST", headers=headers, body=bundle)
    answers = reply.document["answers"]
    assert [(one["status"], one.get("error")) for one in answers] == [
        (403, "other_cluster"),
        (200, None),
        (403, "other_cluster"),
        (200, None),
    ]
    assert (
        answers[0]["detail"].replace("theirs", "absent") == answers[2]["detail"]
    )  # does not reveal whether the cluster exists
    anonymous = await site.request("/v1/batches", None, "POST", headers=headers, body=bundle)
    assert (anonymous.status, anonymous.error) == (401, "no_token")


async def test_number_of_senders_and_epochs_per_token_is_bounded(tmp_path: Path) -> None:
    async with guarded(tmp_path, ingest=IngestConfig(max_senders=3)) as site:
        _, theirs = await site.make(Role.SENDER, cluster="theirs")
        admin, hostile = site.secrets[Role.ADMIN], site.secrets[Role.SENDER]
        assert (await site.request("/v1/clusters/theirs", admin, "PUT", {})).status == 201
        names = [await site.post(body(1, now(), sender=f"made-up-{number}"), hostile) for number in range(9)]
        assert [one.status for one in names] == [200] * 3 + [403] * 6
        assert (names[-1].error, names[-1].document["field"]) == ("too_many_senders", "sender")
        epochs = [await site.post(body(1, now(), sender="made-up-0", epoch=f"{n:032x}"), hostile) for n in range(20)]
        assert [one.status for one in epochs].count(200) == 9
        assert (epochs[-1].error, epochs[-1].document["field"]) == ("too_many_senders", "epoch")
        assert (
            await site.post(body(2, now(), sender="made-up-0"), hostile)
        ).status == 200  # known senders are not affected
        assert (await site.post(body(1, now(), cluster="theirs", sender="made-up-4"), theirs)).status == 200
        page = (await site.request("/metrics", site.secrets[Role.OPERATOR])).body.decode()
        assert 'gpufleet_hub_rejected_batches_total{reason="too_many_senders"} 17\n' in page


async def test_made_up_machines_of_one_sender_do_not_exclude_others(tmp_path: Path) -> None:
    async with guarded(tmp_path, ingest=IngestConfig(max_machines=8)) as site:
        admin, hostile = site.secrets[Role.ADMIN], site.secrets[Role.SENDER]
        made_up = [
            await site.post(body(seq, now(), sender="hostile", machine=Machine(name=f"made-up-{seq}")), hostile)
            for seq in range(1, 10)
        ]
        assert [one.status for one in made_up] == [200] * 4 + [403] * 5
        assert (made_up[-1].error, made_up[-1].document["field"]) == ("too_many_machines", "machines")
        assert (await site.post(body(1, now(), sender="agent"), hostile)).status == 200

        async def stored() -> bool:
            return len((await site.request("/v1/nodes", admin)).document["items"]) == 5

        await wait_until_async(stored)
        (cluster,) = (await site.request("/v1/clusters", admin)).document
        assert (cluster["machines"], cluster["max_machines"], cluster["machines_ratio"]) == (5, 8, 1.0)
        assert (await site.request("/v1/machines/made-up-1", admin, "DELETE")).status == 200
        again = body(10, now(), sender="hostile", machine=Machine(name="made-up-10"))
        assert (await site.post(again, hostile)).status == 200
