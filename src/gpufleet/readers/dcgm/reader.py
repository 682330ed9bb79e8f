"""The DCGM reader: queries a host engine and converts its values to samples."""

from collections.abc import Sequence

from gpufleet.codecs.dcgm_wire.codes import refusal_reason
from gpufleet.codecs.dcgm_wire.values import Entity, FieldValue
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.fleet.lost_instances import InstanceMemory
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError, WireError
from gpufleet.model.reading import Round
from gpufleet.model.view import Side, View
from gpufleet.ports.channel import Dialer
from gpufleet.ports.clock import Clock
from gpufleet.readers.dcgm import samples, xids
from gpufleet.readers.dcgm.client import MAX_BACKOFF_SECONDS, REPLY_SECONDS, BackoffError, EngineClient, EngineError
from gpufleet.readers.dcgm.mapping import activity
from gpufleet.readers.dcgm.mapping.device import EVERY_FIELD, device_fields
from gpufleet.readers.dcgm.mapping.mig import mig_fields
from gpufleet.readers.dcgm.mapping.row import by_entity
from gpufleet.readers.dcgm.samples import NAME, PassReadings
from gpufleet.readers.dcgm.session import (
    EngineSession,
    IncompatibleError,
    MigDevice,
    latest_values,
    mig_entities_of,
    query_mig_devices,
    start_session,
)
from gpufleet.readers.dcgm.watches import WatchManager, WatchSet

PROFILING = WatchSet("profiling", activity.FIELDS, every_seconds=1.0, keep_seconds=10.0, keep_samples=2)
"""Watch of profiling fields. Ratios are means over the last second, so a value is at most one second old."""


class DcgmReader:
    """Reads the GPUs of the machine that a host engine runs on.

    Device values are read live from the driver; only profiling fields and XIDs are sampled by the engine. Samples have
    this machine's time, because the engine's clock may be another machine's. The offset of the engine's clock is a
    reading of its own, and the times of XIDs are corrected by it.
    """

    def __init__(
        self,
        dialer: Dialer,
        clock: Clock,
        *,
        side: Side = Side.HOST,
        profiling: bool = True,
        reply_seconds: float = REPLY_SECONDS,
        max_backoff_seconds: float = MAX_BACKOFF_SECONDS,
    ) -> None:
        """Create the reader; nothing is dialled before the first `read`.

        Args:
            dialer: to the engine.
            clock: wall clock and monotonic clock.
            side: side of the GPU views.
            profiling: whether to watch profiling fields; turn off if another profiler on the machine needs them.
            reply_seconds: timeout of a reply.
            max_backoff_seconds: maximum time between dials of an engine that fails.
        """
        self._client = EngineClient(
            dialer, reply_seconds=reply_seconds, max_backoff_seconds=max_backoff_seconds, monotonic=clock.monotonic
        )
        self._clock, self._side, self._profiling = clock, side, profiling
        self._watches = WatchManager(self._client)
        self._xids = xids.XidHistory()
        self._session: EngineSession | None = None
        self._mig_devices: tuple[MigDevice, ...] | None = None
        self._views: dict[Entity, View] = {}
        self._known: dict[Entity, View] = {}  # of all passes over engines with the same numbers of GPUs
        self._identified: EngineSession | None = None  # of the newest `_views`
        self._states = DeviceStates(NAME)
        self._instances = InstanceMemory()
        self._newest = 0  # newest timestamp of a live value, in microseconds of the engine's clock
        self._offset_ns = 0

    @property
    def name(self) -> str:
        """Return `dcgm`."""
        return NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return all lanes."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW, Lane.EVENT)

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane; the static lane starts a new session with the engine.

        Raises:
            ReaderError: if the engine cannot be reached, does not answer, refuses, has an unsupported version, or
                repeats the values of the previous pass.
        """
        try:
            return await (self._events() if lane is Lane.EVENT else self._pass(lane))
        except IncompatibleError as error:
            sample = samples.incompatible_sample(error.version, self._clock.now_ns())
            raise ReaderError(
                Reason.NOT_SUPPORTED, str(error), round=Round(samples=(sample,) if lane is Lane.STATIC else ())
            ) from error
        except EngineError as error:
            self._session = None
            raise ReaderError(refusal_reason(error.code), str(error)) from error
        except (ChannelError, WireError) as error:
            raise ReaderError(_reason(error), _message(error)) from error
        except BackoffError as waiting:
            last = waiting.failure
            raise ReaderError(_reason(last), _message(last), age_seconds=waiting.age_seconds) from last

    async def close(self) -> None:
        """Close the connection; the engine drops our watches. The next `read` dials again."""
        await self._client.close()
        self._session = None

    async def _pass(self, lane: Lane) -> Round:
        session = await self._current_session(renew=lane is Lane.STATIC)
        failed, readings = await self._query_gpus(session, lane)
        if lane is Lane.FAST:
            readings = await self._query_profiling(readings)
        elif lane is Lane.SLOW:
            readings = readings._replace(xids_watched=await self._are_xids_watched())
        views, errors = self._identify(session, readings)
        own = samples.machine_sample(readings, lane)
        unread = samples.unread_gpus(readings, views)
        found = [*samples.gpu_samples(readings, views, lane), *samples.mig_samples(readings, views, unread, lane)]
        found += self._instances.missing(found, unread, lane)
        return Round(
            samples=(*found, *((own,) if own else ())),
            events=tuple(self._states.change_by_samples(found)),
            errors=(*failed, *errors),
        )

    def _identify(self, session: EngineSession, readings: PassReadings) -> tuple[dict[Entity, View], list[str]]:
        before = self._identified
        if before is not None and before.connection != session.connection:
            is_same = before.gpus == session.gpus and samples.confirms(self._known, readings.live)
            self._known = self._known if is_same else {}  # the engine may be another one, with other numbers
        self._identified = session
        self._views, errors = samples.identify_gpus(session, readings.live, self._side, self._known)
        self._known |= self._views
        return self._views, errors

    async def _current_session(self, *, renew: bool = False) -> EngineSession:
        connection = await self._client.open()
        if self._session is None or self._session.connection != connection or renew:
            self._session = None
            self._session = await start_session(self._client, EVERY_FIELD)
            self._newest = 0
            self._watches.retry_refused()
        if not self._session.gpus:
            message = f"the engine (DCGM {self._session.version}) lists no GPU"
            raise ReaderError(Reason.NO_SUPPORTED_GPU, message)
        return self._session

    async def _query_gpus(self, session: EngineSession, lane: Lane) -> tuple[list[str], PassReadings]:
        """Read GPUs and MIG devices live; return error messages and readings."""
        requested_at = self._clock.now_ns()
        values = await latest_values(self._client, session.form, session.gpus, device_fields(lane, session.unknown))
        at = self._clock.now_ns()
        offset = self._update_offset(values, (requested_at + at) // 2)
        engine_now = self._engine_now(at)
        live = by_entity(samples.mark_stale(values, engine_now))
        readings = PassReadings(session=session, live=live, at=at, offset_ns=offset)
        if not any(samples.modes_of(live.get(gpu, {})).mig for gpu in session.gpus):
            self._mig_devices = None
            return [], readings
        try:
            self._mig_devices = tuple(await query_mig_devices(self._client))
            more = await latest_values(
                self._client, session.form, mig_entities_of(self._mig_devices), mig_fields(lane, session.unknown)
            )
        except EngineError as error:
            why = Absent(refusal_reason(error.code), error.command)
            message = f"MIG devices cannot be listed: {error}"
            return [message], readings._replace(mig_devices=self._mig_devices or (), listing_absence=why)
        live |= by_entity(samples.mark_stale(more, engine_now))
        return [], readings._replace(mig_devices=self._mig_devices)

    def _update_offset(self, values: Sequence[FieldValue], middle: int) -> int | None:
        """Return the engine's clock minus this machine's in nanoseconds, by the newest timestamp of live values.

        Args:
            values: live values.
            middle: midpoint between request and reply, in nanoseconds since 1970.

        Raises:
            ReaderError: if the newest timestamp equals that of the previous pass: the engine returned old values.
                Equal microseconds by chance are practically excluded.
        """
        newest = samples.newest_microseconds(values)
        if newest and newest == self._newest:
            raise ReaderError(Reason.STALE, "the engine returned the values of the previous pass again")
        self._newest = newest
        if not newest:
            return None
        self._offset_ns = newest * 1000 - middle
        return self._offset_ns

    async def _query_profiling(self, readings: PassReadings) -> PassReadings:
        """Read the watched profiling fields; a failure affects only these readings."""
        if not self._profiling:
            why = Absent(Reason.NOT_COLLECTED, "profiling is switched off for this engine")
            return readings._replace(profiling_absence=why)
        entities = self._entities()
        try:
            watched = await self._watches.ensure(PROFILING, entities)
            values = await latest_values(self._client, readings.session.form, entities, watched.fields, live=False)
        except EngineError as error:
            why = Absent(refusal_reason(error.code), str(error))
            return readings._replace(profiling_absence=why)
        except (ChannelError, WireError) as error:
            return readings._replace(profiling_absence=Absent(_reason(error), _message(error)))
        fresh = samples.mark_stale(values, self._engine_now(readings.at), is_watched=True)
        return readings._replace(watched=by_entity(fresh), refused=watched.refused)

    async def _are_xids_watched(self) -> bool:
        try:
            return bool((await self._watches.ensure(xids.WATCH_SET, self._entities())).fields)
        except EngineError:
            return False  # the event lane reports the error

    async def _events(self) -> Round:
        """Return XIDs since the previous pass; the first pass over a connection identifies the GPUs."""
        session = await self._current_session()
        if self._identified is None or self._identified.connection != session.connection:
            _, readings = await self._query_gpus(session, Lane.FAST)
            self._identify(session, readings)
        entities = self._entities()
        watched = await self._watches.ensure(xids.WATCH_SET, entities)
        if not watched.fields:
            return Round()  # the slow lane reports that XIDs are not watched
        now = self._clock.now_ns()
        new = await self._xids.new(self._client, session.form, entities, self._engine_now(now))
        subjects = samples.event_subjects(self._views, self._mig_devices or ())
        return Round(events=xids.map_events(new, subjects, self._offset_ns, now))

    def _engine_now(self, at: int) -> int:
        """Return the engine's time in microseconds at an instant of this machine's clock."""
        return (at + self._offset_ns) // 1000

    def _entities(self) -> tuple[Entity, ...]:
        """Return all watched entities: GPUs and MIG devices."""
        assert self._session is not None
        return (*self._session.gpus, *mig_entities_of(self._mig_devices or ()))


def _reason(error: ChannelError | WireError) -> Reason:
    late = isinstance(error, ChannelError) and error.problem is ChannelProblem.TIMEOUT
    return Reason.TIMEOUT if late else Reason.READER_FAILED


def _message(error: ChannelError | WireError) -> str:
    return str(error) if isinstance(error, ChannelError) else f"the reply violates the DCGM protocol: {error}"
