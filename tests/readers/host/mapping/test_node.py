"""Node attributes: instances of clouds, and the node's name and UID in Kubernetes."""

import base64
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Round
from gpufleet.readers.host import HostReader
from gpufleet.readers.host.plan import INSTANCE_DATA, POD_TOKEN, KubernetesNode
from tests.readers.host.machines import Failing, FixedClock, build, read

UID = "5c1b7a2e-8f4d-4f0a-9a55-0d4b8a1e2f30"
NAMED = ("cloud_provider", "instance_id", "instance_type", "region", "zone")
CLOUDS = {
    "aws": ("aws", "i-0929128ff2f73a2f1", "p5.48xlarge", "us-east-1", "us-east-1b"),
    "azure": (*("azure", "090556da-d4fa-764f-a9f1-63614eda019a", "Standard_ND96isr_H100_v5", "westeurope", "2"),),
    "gcp": ("gcp", "3427915274562381235", None, "us-central1", "us-central1-a"),
    "openstack": ("openstack", "7d4c5c20-3f6a-4b57-9b53-1c2b6a0e5e77", "gpu.h100.2", None, "az1"),
    "oracle": (
        *("oracle_cloud", "ocid1.instance.oc1.phx.anyhqljtniwq6syc3nex", "BM.GPU.H100.8", "us-phoenix-1", "phx-ad-1"),
    ),
}


def named(machine: Machine | None) -> tuple[str | None, ...]:
    """Return the attributes of an instance."""
    assert machine is not None
    return tuple(getattr(machine, field) for field in NAMED)


def reason(got: Round, metric: str) -> Reason | None:
    value = got.samples[0].values[metric]
    return value.reason if isinstance(value, Absent) else None


def change(root: Path, **fields: Any) -> None:
    """Change fields of `v1` in the instance data."""
    path = root / INSTANCE_DATA.lstrip("/")
    document = json.loads(path.read_text())
    document["v1"] |= fields
    path.write_text(json.dumps(document))


class TestInstance:
    @pytest.mark.parametrize("name", CLOUDS)
    async def test_attributes_of_each_provider(self, name: str, tmp_path: Path) -> None:
        got = await read(build(name, tmp_path), Lane.STATIC)
        assert named(got.machine) == CLOUDS[name]
        assert not [error for error in got.errors if "cloud" in error]

    async def test_bare_metal_has_none(self, tmp_path: Path) -> None:
        got = await read(build("bare_metal", tmp_path), Lane.STATIC)
        assert named(got.machine) == (None,) * 5
        assert reason(got, "host_cloud_provider") is Reason.NOT_SUPPORTED

    async def test_instance_data_of_a_clone_do_not_count(self, tmp_path: Path) -> None:
        root = build("aws", tmp_path)
        change(root, instance_id="i-00000000000000001")
        got = await read(root, Lane.STATIC)
        assert named(got.machine) == ("aws", "i-0929128ff2f73a2f1", "p5.48xlarge", None, None)
        assert reason(got, "host_cloud_zone") is Reason.IDENTITY_MISMATCH

    async def test_instance_data_of_another_uuid_do_not_count(self, tmp_path: Path) -> None:
        root = build("openstack", tmp_path)
        change(root, instance_id="00000000-3f6a-4b57-9b53-1c2b6a0e5e77")
        got = await read(root, Lane.STATIC)
        assert named(got.machine) == ("openstack", None, None, None, None)
        assert reason(got, "host_instance_id") is Reason.IDENTITY_MISMATCH

    async def test_without_root_the_uuid_is_not_compared(self, tmp_path: Path) -> None:
        root = build("openstack", tmp_path)
        got = await read(root, Lane.STATIC, {"/sys/class/dmi/id/product_uuid": "EACCES"})
        assert named(got.machine) == CLOUDS["openstack"]

    async def test_instance_data_without_a_provider_in_dmi_do_not_count(self, tmp_path: Path) -> None:
        root = build("aws", tmp_path)
        for name, text in (("sys_vendor", "Dell Inc."), ("board_asset_tag", "")):
            (root / "sys/class/dmi/id" / name).write_text(text + "\n")
        assert named((await read(root, Lane.STATIC)).machine) == (None,) * 5

    async def test_instance_data_of_another_platform_do_not_count(self, tmp_path: Path) -> None:
        root = build("gcp", tmp_path)
        change(root, **{"cloud_name": "nocloud", "cloud-name": "nocloud"})
        got = await read(root, Lane.STATIC)
        assert named(got.machine) == ("gcp", None, None, None, None)
        assert reason(got, "host_instance_id") is Reason.IDENTITY_MISMATCH

    @pytest.mark.parametrize(
        "text", ["iid-datasource", "i-0929128ff2f73a2f", "i-0929128ff2f73a2f1 x", "\x1b[2J", "", 7]
    )
    async def test_malformed_instance_id_is_dropped(self, text: object, tmp_path: Path) -> None:
        root = build("aws", tmp_path)
        (root / "sys/class/dmi/id/board_asset_tag").write_text("\n")
        change(root, instance_id=text)
        got = await read(root, Lane.STATIC)
        assert named(got.machine) == ("aws", None, "p5.48xlarge", None, None)
        assert reason(got, "host_instance_id") is Reason.INVALID_VALUE

    async def test_hostile_texts_are_printable_and_bounded(self, tmp_path: Path) -> None:
        root = build("aws", tmp_path)
        change(root, region="us\x1b[31m\n-east", availability_zone="z" * 10_000)
        machine = (await read(root, Lane.STATIC)).machine
        assert machine is not None
        assert machine.region is not None
        assert machine.region.isprintable()
        assert machine.zone is None or len(machine.zone) <= 250

    async def test_without_cloud_init_dmi_is_enough_for_the_id(self, tmp_path: Path) -> None:
        root = build("aws", tmp_path)
        (root / INSTANCE_DATA.lstrip("/")).unlink()
        got = await read(root, Lane.STATIC)
        assert named(got.machine) == ("aws", "i-0929128ff2f73a2f1", "p5.48xlarge", None, None)
        assert reason(got, "host_cloud_region") is Reason.NOT_SUPPORTED


def certificate(organization: str = "system:nodes", name: str = "system:node:gpu-1") -> bytes:
    """Return a client certificate and its key, as the kubelet keeps them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:node:issuer")])
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(2**120)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return signed.public_bytes(serialization.Encoding.PEM) + private


def token(**kubernetes: Any) -> bytes:
    """Return a service account token with these claims about Kubernetes."""

    def part(document: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=")

    return b".".join((part({"alg": "RS256"}), part({"kubernetes.io": kubernetes}), b"c2lnbmF0dXJl"))


NODE = {"name": "gpu-1", "uid": UID}


class TestKubernetes:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return build("bare_metal", tmp_path)

    def put(self, root: Path, path: str, content: bytes) -> None:
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    async def read(self, root: Path, node: KubernetesNode, failures: dict[str, str] | None = None) -> Round:
        files = Failing(LocalFiles(root), failures or {})
        return await HostReader(files, FixedClock(), node).read(Lane.STATIC)

    def names(self, got: Round) -> tuple[str | None, str | None]:
        assert got.machine is not None
        return got.machine.k8s_node_name, got.machine.k8s_node_uid

    async def test_name_of_the_kubelets_certificate(self, root: Path) -> None:
        self.put(root, KubernetesNode().certificate, certificate())
        got = await self.read(root, KubernetesNode())
        assert self.names(got) == ("gpu-1", None)
        assert reason(got, "host_k8s_node_uid") is Reason.NOT_REPORTED
        assert got.errors == ()

    @pytest.mark.parametrize(
        "content",
        [
            certificate(organization="system:masters"),
            certificate(name="admin"),
            certificate(name="system:node:UPPER case"),
            b"-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n",
            b"",
        ],
    )
    async def test_other_certificates_name_no_node(self, root: Path, content: bytes) -> None:
        self.put(root, KubernetesNode().certificate, content)
        got = await self.read(root, KubernetesNode())
        assert self.names(got) == (None, None)
        assert reason(got, "host_k8s_node_name") is Reason.INVALID_VALUE

    async def test_unreadable_certificate_is_no_failure(self, root: Path) -> None:
        path = KubernetesNode().certificate
        self.put(root, path, certificate())
        got = await self.read(root, KubernetesNode(), {path: "EACCES"})
        assert reason(got, "host_k8s_node_name") is Reason.NOT_PERMITTED
        assert got.errors == ()

    async def test_certificate_is_not_read_if_the_name_is_known(self, root: Path) -> None:
        path = KubernetesNode().certificate
        self.put(root, path, b"not a certificate")
        for node in (KubernetesNode(name="gpu-1"), KubernetesNode(pod_node="gpu-1")):
            got = await self.read(root, node)
            assert (self.names(got), got.errors) == (("gpu-1", None), ())

    async def test_token_has_name_and_uid(self, root: Path) -> None:
        self.put(root, POD_TOKEN, token(namespace="gpu", node=NODE))
        assert self.names(await self.read(root, KubernetesNode())) == ("gpu-1", UID)

    async def test_older_token_has_neither(self, root: Path) -> None:
        self.put(root, POD_TOKEN, token(namespace="gpu"))
        assert self.names(await self.read(root, KubernetesNode(pod_node="gpu-2"))) == ("gpu-2", None)

    async def test_uid_of_another_node_is_dropped(self, root: Path) -> None:
        self.put(root, POD_TOKEN, token(node=NODE))
        got = await self.read(root, KubernetesNode(name="gpu-2"))
        assert self.names(got) == ("gpu-2", None)
        assert reason(got, "host_k8s_node_uid") is Reason.IDENTITY_MISMATCH

    async def test_configuration_comes_first(self, root: Path) -> None:
        self.put(root, POD_TOKEN, token(node={**NODE, "uid": UID.replace("5", "6")}))
        assert self.names(await self.read(root, KubernetesNode(name="gpu-1", uid=UID))) == ("gpu-1", UID)

    async def test_malformed_variable_is_dropped(self, root: Path) -> None:
        got = await self.read(root, KubernetesNode(pod_node="a b\n"))
        assert self.names(got) == (None, None)
        assert reason(got, "host_k8s_node_name") is Reason.INVALID_VALUE

    async def test_guests_are_not_read(self, root: Path) -> None:
        self.put(root, POD_TOKEN, token(node=NODE))
        self.put(root, KubernetesNode().certificate, certificate())
        got = await read(root, Lane.STATIC)
        assert self.names(got) == (None, None)
        assert reason(got, "host_k8s_node_name") is Reason.NOT_COLLECTED
