"""Queries of one GPU, in the child process."""

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
    PART_CALLS,
    PRODUCT,
    VIRTUALIZATION_MODE,
    Call,
)
from gpufleet.readers.nvml.calls.call import MIG_PARENT, VGPU_GUEST, VGPU_HOST, FoundInstance
from gpufleet.readers.nvml.context import (
    DEVICE_ENDED_CODES,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMANENT_CODES,
    RESET_REQUIRED,
    Context,
    DeviceCache,
    DeviceEndedError,
)
from gpufleet.readers.nvml.pool import RecordWriter
from gpufleet.readers.nvml.protocol import (
    DEFECT,
    NOT_APPLICABLE,
    AttachedRecord,
    CallResult,
    GpuPassRecord,
    InstanceRecord,
    Request,
    Value,
)

LIBRARY_NOT_FOUND = 12

_PASSED_THROUGH, _VGPU_GUEST, _VGPU_HOST = 1, 2, 3
"""nvmlGpuVirtualizationMode_t."""

_POSSIBLY_ENDED = frozenset({INVALID_ARGUMENT, NOT_FOUND})
"""Codes of a call about an instance that has possibly ended."""

_NOT_APPLICABLE = CallResult(NOT_APPLICABLE)

_OpenCall = tuple[int, Call, int, Callable[[Context], Value]]
"""A call to make: position of its answer, the call, number and query of its first function."""


class _LanePlan(NamedTuple):
    """Calls of a pass over a lane, and the answers that are known in advance."""

    known: list[CallResult]
    open: tuple[_OpenCall, ...]


def error_text(nvml: Any, code: int) -> str:
    """Return the driver's text for a code; the binding's text if the library is not available."""
    if code == LIBRARY_NOT_FOUND:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            return f"NVML Shared Library Not Found: {error}"
    with contextlib.suppress(nvml.NVMLError, UnicodeDecodeError):
        text = nvml.nvmlErrorString(code)
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return str(nvml.NVMLError(code))


class GpuWorker:
    """State of one GPU: its handle, roles, and the calls that this driver does not offer for it.

    Attributes:
        busy: a pass is running; set by the caller before `run`.
    """

    def __init__(
        self, nvml: Any, index: int, driver: tuple[int, ...], breadcrumbs: memoryview, writer: RecordWriter
    ) -> None:
        self._nvml, self._index, self._driver, self._writer = nvml, index, driver, writer
        self._breadcrumbs, self._slot = breadcrumbs, index + 1
        self._cache = DeviceCache()
        self._device: Context | None = None
        self._mig: CallResult | None = None
        self._virtualization = CallResult(0)
        self._vgpu_roles: tuple[str, ...] = ()
        self._parts: dict[str, CallResult] = {}
        self._product: CallResult | None = None
        self._permanent: dict[tuple[str, str], CallResult] = {}  # by name of the instance, empty for the GPU, and call
        self._plans: dict[tuple[str, tuple[str, ...]], _LanePlan] = {}  # by lane and roles; derived from _permanent
        self.busy = False

    def run(self, request: Request) -> None:
        """Make a pass and write its record, on any thread. The caller sets `busy` first; one pass at a time."""
        try:
            record = self._pass(request)
        except DeviceEndedError as end:
            self._device = None
            message = error_text(self._nvml, end.code)
            record = GpuPassRecord(request.round, self._index, time.time_ns(), end.code, message, end.breadcrumb)
        self._mark(calls.IDLE)
        self.busy = False
        self._writer.put(record)

    def end(self) -> None:
        """Release resources of the driver; only while not `busy`, after the last pass."""
        self._cache.clear()

    def _pass(self, request: Request) -> GpuPassRecord:
        if self._device is None or request.lane == "static":
            self._device = self._attach()
        device = self._device
        mig = self._query(MIG_MODE, device)
        if mig.code in (0, *PERMANENT_CODES):
            if self._mig is not None and mig != self._mig:
                self._reset()
            self._mig = mig
        # If the mode cannot be read now, the last known one applies: its devices are then queried themselves.
        roles = self._roles(self._mig or mig)
        lane = request.lane
        answers = self._answers(lane, roles, device)
        totals, instances = self._instances(device, lane, roles) if roles else ({}, ())
        now, modes = time.time_ns(), (mig, self._virtualization)
        board = (self._parts, self._product)
        return GpuPassRecord(
            request.round, self._index, now, 0, "", 0, *modes, answers, totals, instances, roles, *board
        )

    def _answers(self, lane: str, roles: tuple[str, ...], device: Context) -> tuple[CallResult, ...]:
        """Make all calls of a lane that are not known to be unsupported. The plan avoids a check per call."""
        plan = self._plans.get((lane, roles))
        if plan is None:
            plan = self._plans[lane, roles] = self._plan(lane, roles)
        answers = plan.known.copy()
        breadcrumbs, slot = self._breadcrumbs, self._slot
        for position, call, number, query in plan.open:
            breadcrumbs[slot] = number
            try:
                answers[position] = CallResult(0, query(device), number)
            except Exception as error:  # noqa: BLE001 - a defect in one call must not look like a hung driver
                answers[position] = self._after_error(error, call, device)
        return tuple(answers)

    def _plan(self, lane: str, roles: tuple[str, ...]) -> _LanePlan:
        known: list[CallResult] = []
        left: list[_OpenCall] = []
        for position, call in enumerate(CALLS[lane]):
            if call.role and call.role not in roles:
                known.append(_NOT_APPLICABLE)
                continue
            permanent = self._permanent.get(("", call.key))
            known.append(permanent or _NOT_APPLICABLE)
            if permanent is None:
                first = call.functions[0]
                left.append((position, call, NUMBERS[first.label], first.query))
        return _LanePlan(known, tuple(left))

    def _attach(self) -> Context:
        """Get a new handle, and report the identity of the device at the index."""
        nvml = self._nvml
        handle, _ = self._identify(calls.HANDLE, lambda: nvml.nvmlDeviceGetHandleByIndex(self._index), required=True)
        pci, pci_code = self._identify(calls.PCI_INFO, lambda: nvml.nvmlDeviceGetPciInfo_v3(handle).busId)
        uuid, _ = self._identify(calls.UUID, lambda: nvml.nvmlDeviceGetUUID(handle))
        self._writer.put(AttachedRecord(self._index, _as_text(uuid), _as_text(pci), pci_code))
        self._reset()
        device = Context(nvml, handle, self._driver, self._mark, self._cache)
        self._virtualization = self._query(VIRTUALIZATION_MODE, device)
        self._vgpu_roles = self._query_vgpu_roles(self._virtualization.value, device)
        self._parts = {part: self._query(call, device) for part, call in PART_CALLS.items()}
        self._product = self._query(PRODUCT, device)
        return device

    def _query_vgpu_roles(self, mode: object, device: Context) -> tuple[str, ...]:
        if mode == _VGPU_GUEST:
            return (VGPU_GUEST,)
        if mode == _VGPU_HOST or (mode != _PASSED_THROUGH and self._query(HOST_VGPU_MODE, device).code == 0):
            return (VGPU_HOST,)
        return ()

    def _reset(self) -> None:
        self._permanent.clear()
        self._plans.clear()
        self._cache.clear()

    def _roles(self, mig: CallResult) -> tuple[str, ...]:
        parent = isinstance(mig.value, list) and mig.value[0] == 1
        return (*((MIG_PARENT,) if parent else ()), *self._vgpu_roles)

    def _instances(
        self, device: Context, lane: str, roles: tuple[str, ...]
    ) -> tuple[dict[str, CallResult], tuple[InstanceRecord, ...]]:
        totals: dict[str, CallResult] = {}
        records: list[InstanceRecord] = []
        for name, kind in KINDS.items():
            if kind.role not in roles:
                continue
            try:
                instances, total, code = kind.find(device)
            except self._nvml.NVMLError as error:
                totals[name] = self._failed(error.value)
            except Exception as error:  # noqa: BLE001 - as in _query
                totals[name] = CallResult(DEFECT, type(error).__name__, self._breadcrumbs[self._slot])
            else:
                totals[name] = CallResult(code, None if code else total, self._breadcrumbs[self._slot])
                found = [self._instance(device, lane, name, instance) for instance in instances]
                records += [record for record in found if record is not None]
        return totals, tuple(records)

    def _instance(self, device: Context, lane: str, kind: str, found: FoundInstance) -> InstanceRecord | None:
        """Query one instance; None if it has ended. Only the loss of the GPU itself ends the pass over the GPU."""
        if found.code:
            return InstanceRecord(kind, found.identity, found.code)
        context = device._replace(handle=found.handle)
        try:
            answers = tuple([self._query(call, context, found.name) for call in INSTANCE_CALLS[kind][lane]])
        except DeviceEndedError as end:
            if end.code in (GPU_IS_LOST, RESET_REQUIRED) or self._exists(kind, context, found):
                raise
            return None
        if any(answer.code in _POSSIBLY_ENDED for answer in answers) and not self._exists(kind, context, found):
            return None
        return InstanceRecord(kind, found.identity, answers=answers)

    def _exists(self, kind: str, context: Context, found: FoundInstance) -> bool:
        """Return whether an instance still exists. Raises DeviceEndedError if its GPU has ended."""
        try:
            return KINDS[kind].exists(context, found)
        except self._nvml.NVMLError as error:
            self._failed(error.value)
            return False

    def _identify(self, label: str, query: Callable[[], Any], *, required: bool = False) -> tuple[Any, int]:
        """Return an identifier of the device, None if it is unknown, and the return code."""
        self._mark(label)
        try:
            return query(), 0
        except self._nvml.NVMLError as error:
            if required or error.value in DEVICE_ENDED_CODES:
                raise DeviceEndedError(error.value, NUMBERS[label]) from None
            return None, error.value
        except UnicodeDecodeError:
            return None, 0  # not a valid identifier

    def _query(self, call: Call, context: Context, instance: str = "") -> CallResult:
        known = self._permanent.get((instance, call.key))
        if known is not None:
            return known
        number = NUMBERS[call.functions[0].label]
        self._breadcrumbs[self._slot] = number
        try:
            return CallResult(0, call.functions[0].query(context), number)
        except Exception as error:  # noqa: BLE001 - a defect in one call must not look like a hung driver
            return self._after_error(error, call, context, instance)

    def _after_error(self, error: Exception, call: Call, context: Context, instance: str = "") -> CallResult:
        """Return the result of a call whose first function failed; alternatives are tried if the driver lacks it."""
        answer = self._error_result(error, call, call.functions[0].label)
        for function in call.functions[1:]:
            if answer.code not in PERMANENT_CODES:
                return answer
            number = NUMBERS[function.label]
            self._breadcrumbs[self._slot] = number
            try:
                return CallResult(0, function.query(context), number)
            except Exception as other:  # noqa: BLE001 - as above
                answer = self._error_result(other, call, function.label)
        if answer.code in PERMANENT_CODES:
            self._permanent[instance, call.key] = answer
            self._plans.clear()
        return answer

    def _error_result(self, error: Exception, call: Call, label: str) -> CallResult:
        if not isinstance(error, self._nvml.NVMLError):
            return CallResult(DEFECT, type(error).__name__, NUMBERS[label])
        return self._failed(error.value) if call.inner else self._failed(error.value, NUMBERS[label])

    def _failed(self, code: int, number: int | None = None) -> CallResult:
        """Return the result of a failed function; `number` defaults to the last breadcrumb.

        Raises:
            DeviceEndedError: if the code ends the pass over the device.
        """
        breadcrumb = self._breadcrumbs[self._slot] if number is None else number
        if code in DEVICE_ENDED_CODES:
            raise DeviceEndedError(code, breadcrumb)
        return CallResult(code, None, breadcrumb)

    def _mark(self, label: str) -> None:
        self._breadcrumbs[self._slot] = NUMBERS[label]


def _as_text(text: Any) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text or "")
