"""Configuration of the access to a Kubernetes API server, and of the agent's use of it."""

from typing import Annotated

import msgspec

from gpufleet.config.load import InvalidValueError

MAX_PATTERNS = 64

Pattern = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9./_-]{0,315}[A-Za-z0-9./_-])?\*?\Z")]
Patterns = Annotated[tuple[Pattern, ...], msgspec.Meta(max_length=MAX_PATTERNS)]
"""Names of labels or annotations; a name that ends with `*` is a prefix."""


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Kubernetes API server.

    Attributes:
        kubeconfig: path of a kubeconfig file, such as `/etc/gpufleet/kubeconfig`. None means the service account of
            this pod.
        context: context in that file, such as `prod-1`. None means its current context.
        timeout_seconds: time limit of each step of a request.
    """

    kubeconfig: str | None = None
    context: str | None = None
    timeout_seconds: Annotated[float, msgspec.Meta(ge=1, le=600)] = 30.0

    def __post_init__(self) -> None:
        """Refuse a context without a file."""
        if self.context is not None and self.kubeconfig is None:
            raise InvalidValueError("context", "is set but kubeconfig is not: set both")


class KubernetesConfig(ApiConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Owners, labels and queues of this node's pods, from the Kubernetes API. A hub has them from its collector.

    Attributes:
        enrich: whether to read them. Pods of other nodes are not requested.
        pod_labels: labels of pods in addition to the default ones, such as `cost-centre`.
        pod_annotations: annotations of pods, such as `example.com/project`.
    """

    enrich: bool = False
    pod_labels: Patterns = ()
    pod_annotations: Patterns = ()
