"""The DCGM reader: asks a host engine, and turns its values into samples."""

import hashlib

from gpufleet.codecs.dcgm_wire.codes import REASONS
from gpufleet.codecs.dcgm_wire.commands import LADDER
from gpufleet.codecs.dcgm_wire.values import Entity, FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.channel import ChannelProblem
from gpufleet.model.errors import ChannelError, ReaderError, WireError
from gpufleet.model.reading import Sample, Value
from gpufleet.model.round import Round
from gpufleet.model.text import clean
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address
from gpufleet.ports import Clock, Dialer
from gpufleet.readers.dcgm.client import REPLY_SECONDS, EngineClient, EngineError
from gpufleet.readers.dcgm.mapping import (
    FIELDS,
    MIG_MODE,
    PCI_BUS_ID,
    STATE,
    UUID,
    VGPU_GUEST,
    VIRTUAL_MODE,
    Modes,
    absent_device,
    by_entity,
    map_device,
)
from gpufleet.readers.dcgm.session import IncompatibleError, Session, latest, start

NAME = "dcgm"
_IDENTITY = (UUID, PCI_BUS_ID, MIG_MODE, VIRTUAL_MODE)
_DRIVER = 1
_STATES = {Reason.GPU_LOST: "lost", Reason.RESET_REQUIRED: "reset_required"}
_TEXT_BYTES = 128


class DcgmReader:
    """Reads the GPUs of the machine that a host engine runs on.

    Values of a device are read from its driver at the instant of asking; the engine keeps nothing for us. Times are
    this side's: the engine's clock is another machine's, and how far it is off is told as a reading.
    """

    def __init__(self, dialer: Dialer, clock: Clock, *, reply_seconds: float = REPLY_SECONDS) -> None:
        """Prepare it; nothing is dialled before the first `read`."""
        self._client = EngineClient(dialer, reply_seconds=reply_seconds)
        self._clock = clock
        self._session: Session | None = None

    @property
    def name(self) -> str:
        """Return `dcgm`."""
        return NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return static, fast and slow."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW)

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane; the static lane asks anew who the engine is and which GPUs it has.

        Raises:
            ReaderError: if the engine cannot be reached, does not answer, refuses, or is of another version.
        """
        try:
            return await self._read(lane)
        except IncompatibleError as error:
            raise ReaderError(Reason.NOT_SUPPORTED, str(error)) from error
        except EngineError as error:
            self._session = None
            raise ReaderError(REASONS.get(error.code, Reason.DRIVER_ERROR), str(error)) from error
        except ChannelError as error:
            reason = Reason.TIMEOUT if error.problem is ChannelProblem.TIMEOUT else Reason.READER_FAILED
            raise ReaderError(reason, str(error)) from error
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"the engine's answer is not DCGM's: {error}") from error

    async def close(self) -> None:
        """Hang up; the next `read` dials again."""
        await self._client.close()
        self._session = None

    async def _read(self, lane: Lane) -> Round:
        connection = await self._client.open()
        if self._session is None or self._session.connection != connection or lane is Lane.STATIC:
            self._session = None
            self._session = await start(self._client, FIELDS[Lane.FAST])
        session = self._session
        if not session.gpus:
            raise ReaderError(Reason.NO_SUPPORTED_GPU, f"the engine (DCGM {session.version}) shows no GPU")
        fields = (*_IDENTITY, _DRIVER, *(field for field in FIELDS[lane] if field not in _IDENTITY))
        asked_at = self._clock.now_ns()
        values = await latest(self._client, session.form, session.gpus, fields)
        now = self._clock.now_ns()
        told = by_entity(values)
        errors: list[str] = []
        samples = [
            sample for gpu in session.gpus if (sample := _sample(gpu, told.get(gpu, {}), lane, now, errors)) is not None
        ]
        return Round(samples=(*samples, *_machine(session, values, lane, asked_at, now)), errors=tuple(errors))


def _sample(gpu: Entity, values: dict[int, FieldValue], lane: Lane, now: int, errors: list[str]) -> Sample | None:
    """Return a GPU's sample, or None and an error if nothing names it."""
    uuid, pci = _told_text(values.get(UUID)), _told_text(values.get(PCI_BUS_ID))
    try:
        address = normalise_pci_address(pci) if pci else None
    except ValueError:
        address = None
    if not uuid and not address:
        errors.append(f"GPU {gpu.id} of the engine cannot be named: it tells no UUID and no PCI address")
        return None
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid or None, pci_address=address, index=gpu.id)
    lost = _lost(values)
    if lost is not None:
        found, dims = absent_device(lost, lane)
    else:
        modes = Modes(_told_number(values.get(MIG_MODE)) == 1, _told_number(values.get(VIRTUAL_MODE)) == VGPU_GUEST)
        found, dims = map_device(values, lane, modes)
    if lane is Lane.FAST:
        found[STATE] = _STATES.get(lost.reason, "unreadable") if lost is not None else "ok"
    if lane is Lane.STATIC:
        found["gpu_pci_address"] = address or Absent(Reason.NO_DATA, f"DCGM {PCI_BUS_ID}")
    session = _session_of(_told_text(values.get(_DRIVER)))
    return Sample(view=view, reader=NAME, lane=lane, measured_at=now, values=found, dims=dims, driver_session=session)


def _lost(values: dict[int, FieldValue]) -> Absent | None:
    """Return why nothing of this GPU can be read, if that is so."""
    reasons = {REASONS.get(value.status) for value in values.values()}
    for reason in _STATES:
        if reason in reasons:
            return Absent(reason)
    return None


def _machine(session: Session, values: list[FieldValue], lane: Lane, asked_at: int, now: int) -> tuple[Sample, ...]:
    """Return what is told of the engine itself."""
    found: dict[str, Value | Absent]
    if lane is Lane.STATIC:
        found = {
            "dcgm_version": clean(session.version)[:_TEXT_BYTES],
            "dcgm_compatibility": "first_choice" if session.form is LADDER[0] else "fallback",
        }
    elif lane is Lane.FAST:
        stamps = [value.microseconds * 1000 for value in values if value.status == 0 and value.microseconds > 0]
        middle = (asked_at + now) // 2  # a live value is read between the question and the answer
        found = {
            "dcgm_devices": len(session.gpus),
            "dcgm_clock_offset_seconds": (max(stamps) - middle) / 1e9 if stamps else Absent(Reason.NO_DATA),
        }
    else:
        return ()
    return (Sample(view=None, reader=NAME, lane=lane, measured_at=now, values=found),)


def _told_text(value: FieldValue | None) -> str:
    if value is None or value.status or not isinstance(value.value, str) or value.value.startswith("<<<"):
        return ""
    return clean(value.value)[:_TEXT_BYTES].strip()


def _told_number(value: FieldValue | None) -> int | None:
    return value.value if value is not None and not value.status and isinstance(value.value, int) else None


def _session_of(driver: str) -> int:
    """Return a number for this driver: counters count from its load, of which the engine tells only the version."""
    return int.from_bytes(hashlib.blake2b(driver.encode(), digest_size=8).digest(), "big") >> 11 if driver else 0
