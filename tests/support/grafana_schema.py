"""Grafana's dashboard schema, as published in the Grafana Foundation SDK for version 11.6."""

import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

register_default_plugins()


def schema_violations(document: dict[str, Any]) -> list[str]:
    """Return the paths in a dashboard whose field is unknown to Grafana or whose value has the wrong type."""
    return list(_violations(document, Dashboard, "$"))


def _violations(document: dict[str, Any], model: Any, path: str) -> Iterator[str]:
    parsed = model.from_json(document)
    yield from _unknown(document, json.loads(json.dumps(parsed, cls=JSONEncoder)), path)
    yield from _mistyped(parsed, model, path)


def _unknown(written: Any, known: Any, path: str) -> Iterator[str]:
    if isinstance(written, dict) and isinstance(known, dict):
        for key, value in written.items():
            if key not in known:
                yield f"{path}.{key}"
            else:
                yield from _unknown(value, known[key], f"{path}.{key}")
    elif isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        for place, (one, other) in enumerate(zip(written, known, strict=True)):
            yield from _unknown(one, other, f"{path}[{place}]")
    elif written != known:
        yield path


def _mistyped(value: Any, hint: Any, path: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return
    if origin in (typing.Union, types.UnionType):
        found = [list(_mistyped(value, one, path)) for one in arguments if one is not type(None) or value is None]
        yield from () if [] in found else max(found, key=lambda paths: max(map(len, paths)))  # the closest type's
    elif origin is typing.Literal:
        yield from () if value in arguments else (path,)
    elif origin is list:
        for place, one in enumerate(value if isinstance(value, list) else ()):
            yield from _mistyped(one, arguments[0], f"{path}[{place}]")
        yield from () if isinstance(value, list) else (path,)
    elif origin is dict:
        yield from () if isinstance(value, dict) else (path,)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield from () if value in {one.value for one in hint} else (path,)
    elif isinstance(value, bool) or hint in (bool, str, int, float, type(None)):
        allowed = (int, float) if hint is float else (hint,)
        yield from () if isinstance(value, allowed) and (hint is bool or not isinstance(value, bool)) else (path,)
    elif isinstance(value, dict) and hasattr(hint, "from_json"):  # an object that the library has not parsed
        yield from _violations(value, hint, path)
    elif not isinstance(value, hint):
        yield path
    else:
        for name, field in typing.get_type_hints(type(value)).items():
            yield from _mistyped(getattr(value, name), field, f"{path}.{name}")
