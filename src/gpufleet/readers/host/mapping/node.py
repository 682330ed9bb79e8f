"""Mapping of what identifies a node to others: its name in Kubernetes, and its instance in a cloud."""

from gpufleet.fleet.machine_ids import is_instance_id
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.readers.host import plan
from gpufleet.readers.host.mapping import Readings
from gpufleet.readers.host.parse.cloud import (
    PLATFORMS,
    DmiTexts,
    InstanceData,
    detect_provider,
    dmi_instance_id,
    dmi_instance_type,
    is_same_instance,
    parse_instance_data,
)
from gpufleet.readers.host.parse.kubernetes import (
    NodeClaim,
    parse_client_certificate,
    parse_node_name,
    parse_pod_token,
)
from gpufleet.readers.host.parse.text import decode, printable
from gpufleet.readers.host.plan import KubernetesNode
from gpufleet.readers.host.source import FetchedFiles

NO_PROVIDER = Absent(Reason.NOT_SUPPORTED, "DMI names no known cloud provider")
NOT_LOCAL = Absent(Reason.NOT_COLLECTED, "read on the agent's own machine only")
NO_UID = Absent(Reason.NOT_REPORTED, "neither the configuration nor a pod's token has it")


def map_kubernetes(source: FetchedFiles, node: KubernetesNode | None, into: Readings) -> None:
    """Add name and UID of the node in Kubernetes. The configuration comes first, then the token of the agent's pod."""
    if node is None:
        into.values.update({"host_k8s_node_name": NOT_LOCAL, "host_k8s_node_uid": NOT_LOCAL})
        return
    token = source.take(plan.POD_TOKEN, parse_pod_token)
    claim = NodeClaim() if isinstance(token, Absent) else token
    name = _node_name(source, node, claim)
    into.values["host_k8s_node_name"] = name
    into.values["host_k8s_node_uid"] = _node_uid(node, claim, name)


def map_instance(
    source: FetchedFiles, system_uuid: str, into: Readings, metadata: InstanceData | Absent | None = None
) -> None:
    """Add the cloud provider, and id, type, region and zone of the instance.

    Args:
        source: files of the lane.
        system_uuid: of the machine, or empty.
        into: receives the readings.
        metadata: instance by the metadata service, or why it did not answer; None if it was not queried.
    """
    dmi = _dmi_texts(source)
    provider = detect_provider(dmi)
    if not provider:
        has_dmi = any(getattr(dmi, field) for field in dmi.__struct_fields__)
        absent = NO_PROVIDER if has_dmi else source.absence(f"{plan.DMI}/sys_vendor")
        into.values.update(dict.fromkeys(plan.INSTANCE_METRICS, absent))
        return
    dmi_id = dmi_instance_id(provider, dmi)
    data = _instance_data(source, provider, dmi_id, system_uuid)
    more = metadata
    if isinstance(metadata, InstanceData):
        more = _checked(metadata, "the metadata service", provider, dmi_id, system_uuid)
    known = (dmi_id, dmi_instance_type(provider, dmi), "", "")
    into.values["host_cloud_provider"] = provider
    for metric, field, text in zip(plan.INSTANCE_METRICS[1:], ("id", "type", "region", "zone"), known, strict=True):
        found = text or _text(data, field) or _text(more, field)
        if found:
            into.values[metric] = found
        elif isinstance(more, Absent):
            into.values[metric] = more
        elif isinstance(data, Absent):
            into.values[metric] = data
        else:
            into.values[metric] = Absent(Reason.NOT_REPORTED, f"cloud-init does not report it for {provider}")


def provider_to_query(source: FetchedFiles, system_uuid: str) -> str:
    """Return the provider if DMI and cloud-init do not report everything about the instance, else empty."""
    into = Readings()
    map_instance(source, system_uuid, into)
    provider = detect_provider(_dmi_texts(source))
    is_missing = any(isinstance(into.values[metric], Absent) for metric in plan.INSTANCE_METRICS)
    return provider if is_missing else ""


def _text(data: InstanceData | Absent | None, field: str) -> str:
    return getattr(data, field) if isinstance(data, InstanceData) else ""


def _node_name(source: FetchedFiles, node: KubernetesNode, claim: NodeClaim) -> str | Absent:
    try:
        for name in (node.name, claim.name, node.pod_node):
            if name:
                return parse_node_name(name, plan.NODE_VARIABLE)
    except WireError as error:
        source.fail(str(error))
        return Absent(Reason.INVALID_VALUE, str(error))
    certificate = node.certificate
    absent = source.take(certificate, parse_client_certificate)
    if isinstance(absent, str):
        return absent
    if absent.reason is Reason.NOT_PERMITTED:
        return Absent(Reason.NOT_PERMITTED, f"{printable(certificate)} is readable by root only")
    return absent


def _node_uid(node: KubernetesNode, claim: NodeClaim, name: str | Absent) -> str | Absent:
    if node.uid:
        return node.uid
    if not claim.uid:
        return NO_UID
    if claim.name != name:
        return Absent(Reason.IDENTITY_MISMATCH, printable(f"the pod's token is of the node {claim.name}"))
    return claim.uid


def _instance_data(source: FetchedFiles, provider: str, dmi_id: str, system_uuid: str) -> InstanceData | Absent:
    """Return cloud-init's instance data, or why they are missing or do not count."""
    data = source.take(plan.INSTANCE_DATA, parse_instance_data)
    return data if isinstance(data, Absent) else _checked(data, "cloud-init", provider, dmi_id, system_uuid)


def _checked(data: InstanceData, by: str, provider: str, dmi_id: str, system_uuid: str) -> InstanceData | Absent:
    """Return the data of an instance, or why they do not count; `by` is their source."""
    if data.platform not in PLATFORMS[provider]:
        detail = f"{by} has data of {data.platform or 'no platform'}, DMI names {provider}"
        return Absent(Reason.IDENTITY_MISMATCH, printable(detail))
    if not is_instance_id(provider, data.id):
        detail = f"the instance id {data.id[:40]!r} of {by} is not an id of {provider}"
        return Absent(Reason.INVALID_VALUE, printable(detail))
    if not is_same_instance(provider, data.id, dmi_id, system_uuid):
        return Absent(Reason.IDENTITY_MISMATCH, f"{by} has data of the instance {data.id}, DMI names another one")
    return data


def _dmi_texts(source: FetchedFiles) -> DmiTexts:
    return DmiTexts(
        vendor=_dmi(source, "sys_vendor"),
        product=_dmi(source, "product_name"),
        bios=_dmi(source, "bios_version"),
        board_tag=_dmi(source, "board_asset_tag"),
        chassis_tag=_dmi(source, "chassis_asset_tag"),
    )


def _dmi(source: FetchedFiles, name: str) -> str:
    return printable(decode(source.fetched.files.get(f"{plan.DMI}/{name}", b"")))
