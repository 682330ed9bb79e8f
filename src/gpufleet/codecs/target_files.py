"""Prometheus target files (`file_sd_configs`): JSON or YAML with target groups and labels. Pure.

Format: prometheus.io/docs/prometheus/latest/configuration/configuration, "file_sd_config". Unknown
keys are errors, as in Prometheus.
"""

from typing import Annotated, Any

import msgspec

from gpufleet.model.errors import WireError, WireLimitError

MAX_BYTES = 1 << 20
"""Maximum file size; 1000 targets with a few labels each take 100 KB."""

MAX_DEPTH = 8
"""Maximum nesting; target files have three levels."""

Address = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Labels = Annotated[dict[Annotated[str, msgspec.Meta(max_length=128)], Annotated[str, msgspec.Meta(max_length=1024)]],
                   msgspec.Meta(max_length=64)]  # fmt: skip


class TargetGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Targets that share labels.

    Attributes:
        targets: `host:port`, or `host`.
        labels: labels that begin with `__` configure the scrape.
    """

    targets: Annotated[tuple[Address, ...], msgspec.Meta(max_length=10_000)] = ()
    labels: Labels = {}


Groups = Annotated[tuple[TargetGroup, ...], msgspec.Meta(max_length=10_000)]


def read_groups(content: bytes, *, yaml: bool) -> tuple[TargetGroup, ...]:
    """Return the target groups of one file.

    Args:
        content: whole file.
        yaml: True for YAML, False for JSON.

    Raises:
        WireError: if it is not a target file, or empty: an empty file may be in the middle of a write.
        WireLimitError: if it exceeds a limit.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("", f"more than {MAX_BYTES} bytes")
    if not content.strip():
        raise WireError("", "the file is empty: write [] for no targets")
    try:
        if yaml:
            found: tuple[TargetGroup, ...] = msgspec.convert(_read_yaml(content), Groups)
            return found
        return msgspec.json.decode(content, type=Groups)
    except msgspec.ValidationError as error:
        raise WireError("", f"not a list of target groups: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError("", f"not JSON: {error}") from None
    except RecursionError:
        raise WireLimitError("", "nested too deeply") from None


def _read_yaml(content: bytes) -> Any:
    """Parse YAML with every scalar as text, as Prometheus does: also a label `port: 9400`."""
    import yaml  # from the extra `hub`

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    depth = 0
    try:
        # Events are checked before construction: nesting uses stack, and aliases can expand to any size.
        for event in yaml.parse(content, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise WireError("", "aliases (*name) are not supported: write the values out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise WireLimitError("", "nested too deeply")
        return yaml.load(content, Loader=loader)  # noqa: S506 - this loader creates only texts, lists and tables
    except yaml.YAMLError as error:
        raise WireError("", f"not YAML: {' '.join(str(error).split())}") from None
