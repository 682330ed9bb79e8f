"""In the child process: one GPU."""

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpufleet.readers.nvml import calls
from gpufleet.readers.nvml.calls import (
    CALLS,
    HOST_VGPU_MODE,
    INSTANCE_CALLS,
    KINDS,
    MIG_MODE,
    NUMBERS,
    VIRTUALIZATION_MODE,
    Call,
)
from gpufleet.readers.nvml.calls.call import MIG_PARENT, VGPU_GUEST, VGPU_HOST, Found
from gpufleet.readers.nvml.context import (
    ENDS_DEVICE,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    LASTING,
    NOT_FOUND,
    RESET_REQUIRED,
    Context,
    DeviceEndedError,
    Memory,
)
from gpufleet.readers.nvml.pool import Outlet
from gpufleet.readers.nvml.protocol import (
    DEFECT,
    NOT_ASKED,
    Answer,
    AttachedRecord,
    DeviceRecord,
    InstanceRecord,
    Request,
    Value,
)

LIBRARY_NOT_FOUND = 12

_PASSED_THROUGH, _VGPU_GUEST, _VGPU_HOST = 1, 2, 3
"""nvmlGpuVirtualizationMode_t."""

_ODD = frozenset({INVALID_ARGUMENT, NOT_FOUND})
"""Codes of a call about an instance that may mean that the instance is no more."""

_NOT_ASKED = Answer(NOT_ASKED)

_Open = tuple[int, Call, int, Callable[[Context], Value]]
"""A call that is made: the place of its answer, and number and way of asking its first function."""


class _Plan(NamedTuple):
    """What a pass over a lane asks, and its answers as far as they are known."""

    known: list[Answer]
    open: tuple[_Open, ...]


def words_of(nvml: Any, code: int) -> str:
    """Return the driver's words for a code; the binding's where the library has no say."""
    if code == LIBRARY_NOT_FOUND:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            return f"NVML Shared Library Not Found: {error}"
    with contextlib.suppress(nvml.NVMLError, UnicodeDecodeError):
        text = nvml.nvmlErrorString(code)
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return str(nvml.NVMLError(code))


class Worker:
    """One GPU: its handle, and what this driver does not offer for it."""

    def __init__(self, nvml: Any, index: int, driver: tuple[int, ...], crumbs: memoryview, outlet: Outlet) -> None:
        self._nvml, self._index, self._driver, self._outlet = nvml, index, driver, outlet
        self._crumbs, self._slot = crumbs, index + 1
        self._memory = Memory()
        self._device: Context | None = None
        self._mig: Answer | None = None
        self._virtualization = Answer(0)
        self._role: tuple[str, ...] = ()
        self._lasting: dict[tuple[str, str], Answer] = {}  # by name of the instance, empty for the GPU, and call
        self._plans: dict[tuple[str, tuple[str, ...]], _Plan] = {}  # by lane and roles, of what does not last
        self.busy = False

    def ask(self, request: Request) -> None:
        """Make a round, whoever's thread it is; only one at a time, and after `busy` was set."""
        try:
            record = self._round(request)
        except DeviceEndedError as end:
            self._device = None
            words = words_of(self._nvml, end.code)
            record = DeviceRecord(request.round, self._index, time.time_ns(), end.code, words, end.asked)
        self._mark(calls.NOTHING)
        self.busy = False
        self._outlet.put(record)

    def end(self) -> None:
        """Give back what is held of the driver's; only while not `busy`, after the last round."""
        self._memory.forget()

    def _round(self, request: Request) -> DeviceRecord:
        if self._device is None or request.lane == "static":
            self._device = self._attach()
        device = self._device
        mig = self._ask(MIG_MODE, device)
        if mig.code in (0, *LASTING):
            if self._mig is not None and mig != self._mig:
                self._forget()
            self._mig = mig  # one that is not told now is taken for what it was: its devices are asked for themselves
        roles = self._roles(self._mig or mig)
        lane = request.lane
        answers = self._answers(lane, roles, device)
        found, instances = self._instances(device, lane, roles) if roles else ({}, ())
        now, modes = time.time_ns(), (mig, self._virtualization)
        return DeviceRecord(request.round, self._index, now, 0, "", 0, *modes, answers, found, instances, roles)

    def _answers(self, lane: str, roles: tuple[str, ...], device: Context) -> tuple[Answer, ...]:
        """Ask everything of a lane, but what is known to stay unanswered. A plan spares looking at each call anew."""
        plan = self._plans.get((lane, roles))
        if plan is None:
            plan = self._plans[lane, roles] = self._plan(lane, roles)
        answers = plan.known.copy()
        crumbs, slot = self._crumbs, self._slot
        for position, call, number, ask in plan.open:
            crumbs[slot] = number
            try:
                answers[position] = Answer(0, ask(device), number)
            except Exception as error:  # noqa: BLE001 - a defect in one call must not look like a hung driver
                answers[position] = self._judge(error, call, device)
        return tuple(answers)

    def _plan(self, lane: str, roles: tuple[str, ...]) -> _Plan:
        known: list[Answer] = []
        left: list[_Open] = []
        for position, call in enumerate(CALLS[lane]):
            if call.role and call.role not in roles:
                known.append(_NOT_ASKED)
                continue
            lasting = self._lasting.get(("", call.key))
            known.append(lasting or _NOT_ASKED)
            if lasting is None:
                first = call.functions[0]
                left.append((position, call, NUMBERS[first.label], first.ask))
        return _Plan(known, tuple(left))

    def _attach(self) -> Context:
        """Take a fresh handle, and say which device stands behind the index."""
        nvml = self._nvml
        handle, _ = self._identify(calls.HANDLE, lambda: nvml.nvmlDeviceGetHandleByIndex(self._index), must=True)
        pci, pci_code = self._identify(calls.PCI_INFO, lambda: nvml.nvmlDeviceGetPciInfo_v3(handle).busId)
        uuid, _ = self._identify(calls.UUID, lambda: nvml.nvmlDeviceGetUUID(handle))
        self._outlet.put(AttachedRecord(self._index, _text(uuid), _text(pci), pci_code))
        self._forget()
        device = Context(nvml, handle, self._driver, self._mark, self._memory)
        self._virtualization = self._ask(VIRTUALIZATION_MODE, device)
        self._role = self._role_of(self._virtualization.value, device)
        return device

    def _role_of(self, mode: object, device: Context) -> tuple[str, ...]:
        if mode == _VGPU_GUEST:
            return (VGPU_GUEST,)
        if mode == _VGPU_HOST or (mode != _PASSED_THROUGH and self._ask(HOST_VGPU_MODE, device).code == 0):
            return (VGPU_HOST,)
        return ()

    def _forget(self) -> None:
        self._lasting.clear()
        self._plans.clear()
        self._memory.forget()

    def _roles(self, mig: Answer) -> tuple[str, ...]:
        parent = isinstance(mig.value, list) and mig.value[0] == 1
        return (*((MIG_PARENT,) if parent else ()), *self._role)

    def _instances(
        self, device: Context, lane: str, roles: tuple[str, ...]
    ) -> tuple[dict[str, Answer], tuple[InstanceRecord, ...]]:
        totals: dict[str, Answer] = {}
        records: list[InstanceRecord] = []
        for name, kind in KINDS.items():
            if kind.role not in roles:
                continue
            try:
                parts, total, code = kind.find(device)
            except self._nvml.NVMLError as error:
                totals[name] = self._failed(error.value)
            except Exception as error:  # noqa: BLE001 - as in _ask
                totals[name] = Answer(DEFECT, type(error).__name__, self._crumbs[self._slot])
            else:
                totals[name] = Answer(code, None if code else total, self._crumbs[self._slot])
                asked = [self._instance(device, lane, name, one) for one in parts]
                records += [record for record in asked if record is not None]
        return totals, tuple(records)

    def _instance(self, device: Context, lane: str, kind: str, found: Found) -> InstanceRecord | None:
        """Ask about one part; None if it is no more. Only the loss of the GPU itself ends the pass over the GPU."""
        if found.code:
            return InstanceRecord(kind, found.identity, found.code)
        context = device._replace(handle=found.handle)
        try:
            answers = tuple([self._ask(call, context, found.name) for call in INSTANCE_CALLS[kind][lane]])
        except DeviceEndedError as end:
            if end.code in (GPU_IS_LOST, RESET_REQUIRED) or KINDS[kind].is_there(context, found):
                raise
            return None
        if any(answer.code in _ODD for answer in answers) and not KINDS[kind].is_there(context, found):
            return None
        return InstanceRecord(kind, found.identity, answers=answers)

    def _identify(self, label: str, ask: Any, *, must: bool = False) -> tuple[Any, int]:
        """Return what names the device, None if that cannot be told, and the return code."""
        self._mark(label)
        try:
            return ask(), 0
        except self._nvml.NVMLError as error:
            if must or error.value in ENDS_DEVICE:
                raise DeviceEndedError(error.value, NUMBERS[label]) from None
            return None, error.value
        except UnicodeDecodeError:
            return None, 0  # an identity that is no text is none

    def _ask(self, call: Call, context: Context, instance: str = "") -> Answer:
        known = self._lasting.get((instance, call.key))
        if known is not None:
            return known
        number = NUMBERS[call.functions[0].label]
        self._crumbs[self._slot] = number
        try:
            return Answer(0, call.functions[0].ask(context), number)
        except Exception as error:  # noqa: BLE001 - a defect in one call must not look like a hung driver
            return self._judge(error, call, context, instance)

    def _judge(self, error: Exception, call: Call, context: Context, instance: str = "") -> Answer:
        """Return what a call comes to whose first function failed: the others are asked while the driver has none."""
        answer = self._answer_of(error, call, call.functions[0].label)
        for function in call.functions[1:]:
            if answer.code not in LASTING:
                return answer
            number = NUMBERS[function.label]
            self._crumbs[self._slot] = number
            try:
                return Answer(0, function.ask(context), number)
            except Exception as other:  # noqa: BLE001 - as above
                answer = self._answer_of(other, call, function.label)
        if answer.code in LASTING:
            self._lasting[instance, call.key] = answer
            self._plans.clear()
        return answer

    def _answer_of(self, error: Exception, call: Call, label: str) -> Answer:
        if not isinstance(error, self._nvml.NVMLError):
            return Answer(DEFECT, type(error).__name__, NUMBERS[label])
        return self._failed(error.value) if call.inner else self._failed(error.value, NUMBERS[label])

    def _failed(self, code: int, number: int | None = None) -> Answer:
        """Return the answer of a call that failed: the one that was entered last, unless told."""
        asked = self._crumbs[self._slot] if number is None else number
        if code in ENDS_DEVICE:
            raise DeviceEndedError(code, asked)
        return Answer(code, None, asked)

    def _mark(self, label: str) -> None:
        self._crumbs[self._slot] = NUMBERS[label]


def _text(text: Any) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text or "")
