"""Resources of the Kubernetes API: their paths, and those that gpufleet reads. Pure."""

import re

import msgspec

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9])?")
_API_VERSION = re.compile(r"(?:([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)/)?(v[0-9a-z]{1,32})")


class ApiResource(msgspec.Struct, frozen=True):
    """A resource of the API.

    Attributes:
        group: API group; empty for the core group.
        version: version of the group.
        plural: name in paths.
        is_namespaced: whether its objects are in namespaces.
    """

    group: str
    version: str
    plural: str
    is_namespaced: bool = True

    @property
    def name(self) -> str:
        """Return `plural.group`, as kubectl writes it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of the objects of all namespaces, of a namespace, or of an object.

        Raises:
            ValueError: if `namespace` or `name` cannot be the name of an object.
        """
        parts = [version_path(f"{self.group}/{self.version}" if self.group else self.version)]
        if namespace and self.is_namespaced:
            parts.append(f"namespaces/{_checked(namespace)}")
        parts.append(self.plural)
        if name:
            parts.append(_checked(name))
        return "/".join(parts)


def version_path(api_version: str) -> str:
    """Return the path of an API version: `/apis/apps/v1` or `/api/v1`.

    Raises:
        ValueError: if the text is not an API version.
    """
    if _API_VERSION.fullmatch(api_version) is None or ".." in api_version:
        raise ValueError(f"{api_version[:64]!r} is not an API version")
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name[:64]!r} is not the name of an object")
    return name


NAMESPACES = ApiResource("", "v1", "namespaces", is_namespaced=False)
NODES = ApiResource("", "v1", "nodes", is_namespaced=False)
PODS = ApiResource("", "v1", "pods")
RESOURCE_SLICES = ApiResource("resource.k8s.io", "v1", "resourceslices", is_namespaced=False)
RESOURCE_CLAIMS = ApiResource("resource.k8s.io", "v1", "resourceclaims")
VIRTUAL_MACHINE_INSTANCES = ApiResource("kubevirt.io", "v1", "virtualmachineinstances")
LEASES = ApiResource("coordination.k8s.io", "v1", "leases")
