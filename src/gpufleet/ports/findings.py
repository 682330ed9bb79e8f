"""Port of findings: durable state of the rules, transitions, acknowledgements and silences.

Methods block, are thread-safe and durable when they return. Every method raises RegistryError if the registry refuses
or cannot be reached.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import (
    FindingAcknowledgement,
    FindingQuery,
    FindingsState,
    FindingTransition,
    LateStart,
    NumberedTransition,
    Silence,
)


class FindingRegistry(Protocol):
    """Findings of a hub. One process writes the state."""

    def findings_state(self) -> FindingsState:
        """Return the state that was saved last; an empty one at first."""
        ...

    def save_findings(self, state: FindingsState, transitions: Sequence[FindingTransition]) -> None:
        """Store the state, the findings of the transitions and the numbered transitions, in one transaction."""
        ...

    def late_starts(self) -> tuple[LateStart, ...]:
        """Return the senders with late batches that are not judged yet."""
        ...

    def save_late_starts(self, starts: Sequence[LateStart], judged: Collection[tuple[str, str]] = ()) -> None:
        """Store the start of senders, and delete that of others, by cluster and sender, in one transaction."""
        ...

    def contract_state(self) -> bytes | None:
        """Return the history of the adoption contract that was saved last; None at first."""
        ...

    def save_contract_state(self, state: bytes) -> None:
        """Store the history of the adoption contract."""
        ...

    def findings(self, query: FindingQuery) -> tuple[Finding, ...]:
        """Return matching findings as of their newest transition, with acknowledgements."""
        ...

    def finding(self, id: str) -> Finding:  # noqa: A002 - the term of the domain
        """Return a finding as of its newest transition. Raises NotFoundError."""
        ...

    def finding_timeline(self, id: str) -> tuple[FindingTransition, ...]:  # noqa: A002
        """Return the transitions of a finding, oldest first."""
        ...

    def finding_transitions(self, after: int, limit: int) -> tuple[NumberedTransition, ...]:
        """Return transitions with numbers above `after`, in order."""
        ...

    def newest_transition(self) -> int:
        """Return the number of the newest transition; 0 if there is none."""
        ...

    def acknowledge_finding(self, acknowledgement: FindingAcknowledgement) -> Finding:
        """Store an acknowledgement in place of an earlier one. Raises NotFoundError."""
        ...

    def finding_acknowledgements(self, ids: Sequence[str]) -> dict[str, FindingAcknowledgement]:
        """Return the acknowledgements of findings by id, ended ones included; a finding without one is missing."""
        ...

    def add_silence(self, silence: Silence) -> None:
        """Store a silence."""
        ...

    def end_silence(self, id: str, at: int) -> Silence:  # noqa: A002
        """End a silence; an ended one is unchanged. Raises NotFoundError."""
        ...

    def silences(self, since: int) -> tuple[Silence, ...]:
        """Return the silences that end after `since`, oldest first."""
        ...

    def remove_silences(self, ended_before: int, limit: int) -> int:
        """Remove up to `limit` silences that ended before then; return their number."""
        ...

    def notified(self, receiver: str) -> int | None:
        """Return the number of the newest transition that a receiver has; None for a new receiver."""
        ...

    def set_notified(self, receiver: str, number: int) -> None:
        """Store that number."""
        ...

    def keep_receivers(self, receivers: Collection[str]) -> int:
        """Remove the numbers of all other receivers; return how many there were."""
        ...

    def remove_findings(self, closed_before: int, limit: int, undelivered_before: int = 0) -> int:
        """Remove up to `limit` findings closed before then, with their transitions; return their number.

        A finding with a transition that a receiver does not have yet is kept, unless it was closed before
        `undelivered_before`.
        """
        ...
