"""Parts of the facts that could not be gathered, with the reasons."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from gpufleet.model.errors import GpufleetError

LOG = logging.getLogger(__name__)

STORE, FLEET, READINGS, EVENTS, DUPLICATES = "store", "machines and GPUs", "readings", "events", "duplicate GPUs"
CLUSTERS, MACHINES, COVERAGE, SCAN, ALLOCATIONS = "clusters", "machines", "coverage", "holders", "allocations"
COLLECTORS, CONTRACT, LATE, DELETED = "collectors", "adoption contract", "late data", "deleted Kubernetes nodes"
"""Parts that can fail."""


class EvaluationStopped(BaseException):
    """The hub stops: nothing is judged. No `Exception`, so that it does not count as the failure of a part."""


class PartFailures:
    """Parts that could not be gathered.

    Attributes:
        reasons: part to the reason.
    """

    def __init__(self, previous: Mapping[str, str], is_stopped: Callable[[], bool]) -> None:
        """Take the reasons of the previous judgement (a defect is logged once), and whether the hub stops."""
        self.reasons: dict[str, str] = {}
        self._previous = previous
        self._is_stopped = is_stopped

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record an error of a part; the other parts are gathered. Raises EvaluationStopped if the hub stops."""
        if self._is_stopped():
            raise EvaluationStopped
        try:
            yield
        except GpufleetError as error:
            self.reasons[name] = str(error)
        except Exception as error:  # broad: a defect in a part must not hide what the other parts show
            reason = self.reasons[name] = f"{type(error).__name__}: {error}"
            if self._previous.get(name) != reason:
                LOG.exception("facts for the rules: the part %s failed", name)
