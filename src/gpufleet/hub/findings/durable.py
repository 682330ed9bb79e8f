"""Tracker of findings whose results are visible only once they are durable."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from gpufleet.fleet.rules.judgement import Judgement
from gpufleet.fleet.rules.rule import FindingRule, Thresholds
from gpufleet.fleet.rules.tracker import Findings
from gpufleet.model.errors import RegistryError
from gpufleet.model.finding import Finding, FindingState
from gpufleet.model.stored.findings import FindingQuery, FindingTransition, TransitionKind, TransitionReason
from gpufleet.ports.findings import FindingRegistry

MAX_UNSAVED = 10_000
"""Maximum number of transitions that wait for the registry. Beyond it, the tracker returns to its last saved state."""

PAGE = 10_000
"""Number of open findings that are read at once."""


class DurableFindings:
    """Findings of a set of rules. One thread updates them; any thread reads the visible ones.

    State and transitions are saved in one transaction. After a failed save the tracker goes on in memory, and the next
    save has the transitions of both: so an outage of the registry is itself a finding afterwards. The registry ignores
    transitions that it has already, because a save can be reported as failed after its commit.

    State and table of findings agree unless one of them was lost or restored by itself. Findings that are open in only
    one of them are therefore compared when the state is loaded, and recorded with the next judgement: a finding that
    only the table has is closed with the reason `not_tracked`, and one that only the state has is opened again.

    Attributes:
        untracked: as in `Findings`, at the newest saved judgement.
        saved_at: time of that judgement, nanoseconds since 1970; None before the first.
        class_maxima: largest number of GPUs of each class of machines, as saved with the state.
    """

    def __init__(
        self,
        registry: FindingRegistry,
        rules: Iterable[FindingRule],
        thresholds: Thresholds,
        *,
        relearn_classes: Collection[str] = (),
    ) -> None:
        """Take the registry, the rules and their thresholds, and the classes whose saved maximum is dropped."""
        self._registry = registry
        self._rules = tuple(rules)
        self._thresholds = thresholds
        self._tracker: Findings | None = None
        self._unsaved: list[FindingTransition] = []
        self._untracked_open: tuple[Finding, ...] = ()
        self._unrecorded: tuple[Finding, ...] = ()
        self._open: tuple[Finding, ...] = ()
        self._relearn = frozenset(relearn_classes)
        self.untracked: int | None = None
        self.saved_at: int | None = None
        self.class_maxima: Mapping[str, int] = {}

    def load(self) -> None:
        """Load the saved state unless there is one in memory. Raises RegistryError."""
        if self._tracker is None:
            state = self._registry.findings_state()
            tracker = Findings(self._rules, self._thresholds, state)
            tracked = {one.id: one for one in tracker.list_open()}
            recorded = {one.id: one for one in self._recorded_open()}
            self._untracked_open = tuple(one for id_, one in recorded.items() if id_ not in tracked)
            self._unrecorded = tuple(one for id_, one in tracked.items() if id_ not in recorded)
            self._unsaved = []
            self._open = tuple(tracked.values())
            self.class_maxima = {name: count for name, count in state.class_maxima.items() if name not in self._relearn}
            self._relearn = frozenset()
            self._tracker = tracker

    def open_findings(self) -> Sequence[Finding]:
        """Return the open findings as of the newest saved judgement."""
        return self._open

    def update(
        self,
        judgement: Judgement,
        registry_error: str = "",
        late: Sequence[FindingTransition] = (),
        class_maxima: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Take a judgement, and save state and transitions.

        Args:
            judgement: the newest judgement.
            registry_error: why the registry does not answer: the state is then not saved.
            late: transitions of findings in the past, which are closed.
            class_maxima: newest maxima. A saved one is only replaced by a larger one.

        Raises:
            RegistryError: if the state cannot be loaded or saved; nothing becomes visible.
        """
        self.load()
        tracker, self._tracker = self._tracker, None  # dropped if a defect interrupts the update
        assert tracker is not None
        transitions = tracker.update(judgement)
        self._unsaved += (*self._corrections(tracker.at), *late, *transitions)
        if len(self._unsaved) <= MAX_UNSAVED:
            self._tracker = tracker
        if registry_error:
            raise RegistryError(registry_error)
        known = self.class_maxima
        self.class_maxima = {**known, **{one: max(n, known.get(one, 0)) for one, n in class_maxima.items()}}
        state = msgspec.structs.replace(tracker.export(), class_maxima=self.class_maxima)
        self._registry.save_findings(state, tuple(self._unsaved))
        self._tracker, self._unsaved = tracker, []
        self._open, self.untracked, self.saved_at = tracker.list_open(), tracker.untracked, judgement.at

    def _recorded_open(self) -> Iterator[Finding]:
        """Read the open findings of the registry's table."""
        query = FindingQuery(is_closed=False, limit=PAGE)
        while page := self._registry.findings(query):
            yield from page
            query = msgspec.structs.replace(query, after=(page[-1].opened_at, page[-1].id))

    def _corrections(self, at: int) -> Iterator[FindingTransition]:
        """Return the transitions after which state and table agree, once."""
        for one in self._untracked_open:
            closed = msgspec.structs.replace(
                one, state=FindingState.CLOSED, closed_at=at, hidden_by="", acknowledged_until=None
            )
            yield FindingTransition(
                kind=TransitionKind.CLOSED, at=at, reason=TransitionReason.NOT_TRACKED, finding=closed
            )
        for one in self._unrecorded:
            yield FindingTransition(kind=TransitionKind.OPENED, at=at, reason=TransitionReason.FIRING, finding=one)
        self._untracked_open = self._unrecorded = ()
