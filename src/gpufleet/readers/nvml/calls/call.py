"""What a call is, and makers of the plain ones."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpufleet.readers.nvml.context import ENDS_DEVICE, Context
from gpufleet.readers.nvml.protocol import LASTING_ENTRIES, Answer, Value

Calls = dict[str, tuple["Call", ...]]
"""The calls of a group, by lane."""


MIG_PARENT, VGPU_HOST, VGPU_GUEST = "mig_parent", "vgpu_host", "vgpu_guest"
"""Roles of a GPU, as the catalogue words them: MIG mode is on, it hosts vGPUs, it is one seen from its guest."""


class Function(NamedTuple):
    """One function with its arguments as people write it, and how to ask it."""

    label: str
    ask: Callable[[Context], Value]


class Call(NamedTuple):
    """One reading's call.

    Attributes:
        key: names it in the mapping.
        functions: tried in turn while a driver does not have them.
        inner: labels of further functions that it enters, for breadcrumbs.
        role: it is asked only of a GPU in this role.
    """

    key: str
    functions: tuple[Function, ...]
    inner: tuple[str, ...] = ()
    role: str = ""


class Found(NamedTuple):
    """A part of a GPU that was found.

    Attributes:
        name: tells it from the others of its GPU as long as it lives.
        handle: what its calls are asked with.
        identity: what names it, by the name of the part.
        code: 0, or why it cannot be named; then nothing more is asked about it.
    """

    name: str
    handle: Any
    identity: dict[str, Answer]
    code: int = 0


class Finding(NamedTuple):
    """What was found of a kind.

    Attributes:
        parts: those that can be asked about, and those that there are or may be and that cannot be named.
        total: how many there are; more than `parts` where there are more than one pass tells of.
        code: 0, or why it cannot be told how many there are.
    """

    parts: list[Found]
    total: int
    code: int = 0


class Kind(NamedTuple):
    """A kind of part that a GPU can be cut or shared into.

    Attributes:
        role: a GPU in this role has some.
        find: lists them; raises NVMLError if the driver does not tell.
        is_there: whether one that was found is still the same; asked when a call about it fails oddly.
        calls: what is asked of each.
    """

    role: str
    find: Callable[[Context], Finding]
    is_there: Callable[[Context, Found], bool]
    calls: Calls


def plain(name: str, *arguments: int, shown: str = "") -> Call:
    """Return a call of the binding's function of that name that gives a number, a text or a list of them."""
    return Call(f"{name}({shown})" if shown else name, (function(name, *arguments, shown=shown),))


def function(name: str, *arguments: int, shown: str = "") -> Function:
    """Return the binding's function of that name with these arguments after the handle."""

    def ask(context: Context) -> Value:
        value: Value = getattr(context.nvml, name)(context.handle, *arguments)
        return value

    return Function(f"{name}({shown})" if shown else name, ask)


def custom(name: str, ask: Callable[[Context], Value], *, inner: tuple[str, ...] = ()) -> Call:
    """Return a call that is asked in a way of its own."""
    return Call(name, (Function(name, ask),), inner)


def struct(name: str, *attributes: str, shown: str = "") -> Call:
    """Return a call of the binding's function that gives a struct, of which these attributes are read."""

    def ask(context: Context) -> Value:
        found = getattr(context.nvml, name)(context.handle)
        return [getattr(found, attribute) for attribute in attributes]

    return custom(shown or name, ask)


def each(context: Context, name: str, ask: Callable[[Any], Value], arguments: Iterable[Any]) -> Value:
    """Ask once for each argument; return a list of [code, value]: one that fails costs only itself.

    What the driver does not support is remembered under `name` and not asked again.

    Raises:
        NVMLError: if the device as a whole is gone.
    """
    lasting: dict[Any, Value] = context.memory.keep(name, dict)
    entries: list[Value] = []
    for argument in arguments:
        if argument in lasting:
            entries.append(lasting[argument])
            continue
        try:
            entries.append([0, ask(argument)])
        except context.nvml.NVMLError as error:
            if error.value in ENDS_DEVICE:
                raise
            entries.append([error.value, None])
            if error.value in LASTING_ENTRIES:
                lasting[argument] = entries[-1]
    return entries
