"""The DCGM reader: asks a host engine, and turns its values into samples."""

from collections.abc import Sequence

from gpufleet.codecs.dcgm_wire.codes import REASONS
from gpufleet.codecs.dcgm_wire.values import Entity, FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError, WireError
from gpufleet.model.reading import Round
from gpufleet.model.view import Side, View
from gpufleet.ports.channel import Dialer
from gpufleet.ports.clock import Clock
from gpufleet.readers.dcgm import samples, xids
from gpufleet.readers.dcgm.client import MOST_SECONDS, REPLY_SECONDS, EngineClient, EngineError
from gpufleet.readers.dcgm.mapping import activity
from gpufleet.readers.dcgm.mapping.device import EVERY_FIELD, device_fields
from gpufleet.readers.dcgm.mapping.part import part_fields
from gpufleet.readers.dcgm.mapping.row import by_entity
from gpufleet.readers.dcgm.samples import NAME, Told
from gpufleet.readers.dcgm.session import IncompatibleError, Part, Session, ask_parts, entities_of, latest, start
from gpufleet.readers.dcgm.watches import Watches, WatchSet

PROFILING = WatchSet("profiling", activity.FIELDS, every_seconds=1.0, keep_seconds=10.0, keep_samples=2)
"""Ratios are means over the last second: what they say is as old as that at the most."""


class DcgmReader:
    """Reads the GPUs of the machine that a host engine runs on.

    Values of a device are read from its driver at the instant of asking; the engine samples profiling fields and XIDs
    for us, and nothing else. Samples bear this side's time: the engine's clock is another machine's. How far that is
    off is a reading of its own, and what bears the engine's time (XIDs) is corrected by it.
    """

    def __init__(
        self,
        dialer: Dialer,
        clock: Clock,
        *,
        side: Side = Side.HOST,
        profiling: bool = True,
        reply_seconds: float = REPLY_SECONDS,
        most_wait_seconds: float = MOST_SECONDS,
    ) -> None:
        """Prepare it; nothing is dialled before the first `read`.

        Args:
            dialer: to the engine.
            clock: the clocks.
            side: from where the engine sees its GPUs.
            profiling: whether the engine is made to sample profiling fields, which another profiler on its machine
                may want for itself.
            reply_seconds: how long a reply may take.
            most_wait_seconds: longest time between dials of an engine that fails.
        """
        self._client = EngineClient(
            dialer, reply_seconds=reply_seconds, most_wait_seconds=most_wait_seconds, monotonic=clock.monotonic
        )
        self._clock, self._side, self._profiling = clock, side, profiling
        self._watches = Watches(self._client)
        self._xids = xids.XidHistory()
        self._session: Session | None = None
        self._parts: tuple[Part, ...] | None = None
        self._views: dict[Entity, View] = {}
        self._newest = 0  # the newest time that a live value bore, by the engine's clock
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
        """Make one pass of one lane; the static lane asks anew who the engine is and which GPUs it has.

        Raises:
            ReaderError: if the engine cannot be reached, does not answer, refuses, is of another version, or repeats
                what it said before.
        """
        try:
            return await (self._events() if lane is Lane.EVENT else self._pass(lane))
        except IncompatibleError as error:
            told = samples.incompatible_sample(error.version, self._clock.now_ns())
            raise ReaderError(
                Reason.NOT_SUPPORTED, str(error), round=Round(samples=(told,) if lane is Lane.STATIC else ())
            ) from error
        except EngineError as error:
            self._session = None
            raise ReaderError(REASONS.get(error.code, Reason.DRIVER_ERROR), str(error)) from error
        except (ChannelError, WireError) as error:
            raise ReaderError(_reason(error), _words(error)) from error

    async def close(self) -> None:
        """Hang up: the engine forgets what it sampled for us. The next `read` dials again."""
        await self._client.close()
        self._session = None

    async def _pass(self, lane: Lane) -> Round:
        session = await self._of_this_connection(anew=lane is Lane.STATIC)
        failed, told = await self._ask_gpus(session, lane)
        if lane is Lane.FAST:
            told = await self._ask_profiling(told)
        elif lane is Lane.SLOW:
            told = told._replace(xids_watched=await self._are_xids_watched())
        views, errors = samples.name_gpus(session, told.live, self._side)
        self._views = views
        own = samples.machine_sample(told, lane)
        found = [*samples.gpu_samples(told, views, lane), *samples.part_samples(told, views, lane)]
        return Round(samples=(*found, *((own,) if own else ())), errors=(*failed, *errors))

    async def _of_this_connection(self, *, anew: bool = False) -> Session:
        connection = await self._client.open()
        if self._session is None or self._session.connection != connection or anew:
            self._session = None
            self._session = await start(self._client, EVERY_FIELD)
            self._newest = 0
            self._watches.try_refused_again()
        if not self._session.gpus:
            words = f"the engine (DCGM {self._session.version}) shows no GPU"
            raise ReaderError(Reason.NO_SUPPORTED_GPU, words)
        return self._session

    async def _ask_gpus(self, session: Session, lane: Lane) -> tuple[list[str], Told]:
        """Ask the driver, of GPUs and of what they are cut into; return words of what failed, and what was told."""
        asked_at = self._clock.now_ns()
        values = await latest(self._client, session.form, session.gpus, device_fields(lane, session.unknown))
        at = self._clock.now_ns()
        offset = self._clock_of(values, (asked_at + at) // 2)
        engine_now = self._engine_now(at)
        live = by_entity(samples.without_stale(values, engine_now))
        told = Told(session=session, live=live, at=at, offset_ns=offset)
        if not any(samples.modes_of(live.get(gpu, {})).mig for gpu in session.gpus):
            self._parts = None
            return [], told
        try:
            self._parts = tuple(await ask_parts(self._client))
            of_parts = entities_of(self._parts) if lane is Lane.FAST else ()
            more = await latest(self._client, session.form, of_parts, part_fields(session.unknown))
        except EngineError as error:
            why = Absent(REASONS.get(error.code, Reason.DRIVER_ERROR), error.command)
            words = f"MIG devices cannot be listed: {error}"
            return [words], told._replace(parts=self._parts or (), unlisted=why)
        live |= by_entity(samples.without_stale(more, engine_now))
        return [], told._replace(parts=self._parts)

    def _clock_of(self, values: Sequence[FieldValue], middle: int) -> int | None:
        """Return how far the engine's clock is ahead, by values that it read between question and answer.

        Raises:
            ReaderError: if it answers with what it read before: no two live values are of one microsecond by chance.
        """
        newest = samples.newest_microseconds(values)
        if newest and newest == self._newest:
            raise ReaderError(Reason.STALE, "the engine answers with the values of the pass before, not with new ones")
        self._newest = newest
        if not newest:
            return None
        self._offset_ns = newest * 1000 - middle
        return self._offset_ns

    async def _ask_profiling(self, told: Told) -> Told:
        """Ask for what the engine samples; that it fails costs these readings alone."""
        if not self._profiling:
            return told._replace(no_profiling=Absent(Reason.NOT_COLLECTED, "profiling is switched off for this engine"))
        entities = self._entities()
        try:
            made = await self._watches.ensure(PROFILING, entities)
            values = await latest(self._client, told.session.form, entities, made.fields, live=False)
        except EngineError as error:
            why = Absent(REASONS.get(error.code, Reason.DRIVER_ERROR), str(error))
            return told._replace(no_profiling=why)
        except (ChannelError, WireError) as error:
            return told._replace(no_profiling=Absent(_reason(error), _words(error)))
        fresh = samples.without_stale(values, self._engine_now(told.at))
        return told._replace(watched=by_entity(fresh), refused=made.refused)

    async def _are_xids_watched(self) -> bool:
        try:
            return bool((await self._watches.ensure(xids.SET, self._entities())).fields)
        except EngineError:
            return False  # the event lane tells in which words

    async def _events(self) -> Round:
        """Tell of XIDs since the pass before; the first one asks who is there."""
        session = await self._of_this_connection()
        if not self._views:
            _, told = await self._ask_gpus(session, Lane.FAST)
            self._views, _ = samples.name_gpus(session, told.live, self._side)
        entities = self._entities()
        made = await self._watches.ensure(xids.SET, entities)
        if not made.fields:
            return Round()  # the slow lane tells that XIDs are not watched
        now = self._clock.now_ns()
        new = await self._xids.new(self._client, session.form, entities, self._engine_now(now))
        named = samples.entities_named(self._views, self._parts or ())
        return Round(events=xids.events_of(new, named, self._offset_ns, now))

    def _engine_now(self, at: int) -> int:
        """Return what the engine's clock showed at an instant of ours, in microseconds."""
        return (at + self._offset_ns) // 1000

    def _entities(self) -> tuple[Entity, ...]:
        """Return all that is watched: GPUs, and what they are cut into."""
        assert self._session is not None
        return (*self._session.gpus, *entities_of(self._parts or ()))


def _reason(error: ChannelError | WireError) -> Reason:
    late = isinstance(error, ChannelError) and error.problem is ChannelProblem.TIMEOUT
    return Reason.TIMEOUT if late else Reason.READER_FAILED


def _words(error: ChannelError | WireError) -> str:
    return str(error) if isinstance(error, ChannelError) else f"the engine's answer is not DCGM's: {error}"
