"""Prometheus' files of targets (`file_sd_configs`): JSON or YAML, groups of targets with labels. Pure.

Format: prometheus.io/docs/prometheus/latest/configuration/configuration, "file_sd_config". Prometheus itself refuses
keys that it does not know, and so does this.
"""

from typing import Annotated, Any

import msgspec

from gpufleet.model.errors import WireError, WireLimitError

MAX_BYTES = 1 << 20
"""Of one file; 1000 targets with a few labels each have 100 KB."""

MAX_DEPTH = 8
"""A file of targets is nested three deep."""

Address = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Labels = Annotated[dict[Annotated[str, msgspec.Meta(max_length=128)], Annotated[str, msgspec.Meta(max_length=1024)]],
                   msgspec.Meta(max_length=64)]  # fmt: skip


class TargetGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Targets that share labels.

    Attributes:
        targets: `host:port`, or `host`.
        labels: names that begin with `__` say how the target is asked.
    """

    targets: Annotated[tuple[Address, ...], msgspec.Meta(max_length=10_000)] = ()
    labels: Labels = {}


Groups = Annotated[tuple[TargetGroup, ...], msgspec.Meta(max_length=10_000)]


def read_groups(content: bytes, *, yaml: bool) -> tuple[TargetGroup, ...]:
    """Return the groups of one file.

    Args:
        content: all of the file.
        yaml: whether it is YAML; else it is JSON.

    Raises:
        WireError: if it is no such file, or empty: a file that is just being written is not one without targets.
        WireLimitError: if it passes a bound.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("", f"more than {MAX_BYTES} bytes")
    if not content.strip():
        raise WireError("", "it is empty: write [] for no targets")
    try:
        if yaml:
            found: tuple[TargetGroup, ...] = msgspec.convert(_read_yaml(content), Groups)
            return found
        return msgspec.json.decode(content, type=Groups)
    except msgspec.ValidationError as error:
        raise WireError("", f"it is no list of targets: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError("", f"it is not JSON: {error}") from None
    except RecursionError:
        raise WireLimitError("", "it is nested too deeply") from None


def _read_yaml(content: bytes) -> Any:
    """Return a document in which every scalar is text, as Prometheus reads it: a label `port: 9400` too."""
    import yaml  # of the hub's extra

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    depth = 0
    try:
        # Looked at before it is put together: nesting takes stack, and aliases unpack to any size.
        for event in yaml.parse(content, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise WireError("", "it has aliases (*name), which are not read: write them out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise WireLimitError("", "it is nested too deeply")
        return yaml.load(content, Loader=loader)  # noqa: S506 - a loader that makes nothing but texts, lists and tables
    except yaml.YAMLError as error:
        raise WireError("", f"it is not YAML: {' '.join(str(error).split())}") from None
