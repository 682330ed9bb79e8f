"""Questions about what allocations came to."""

from collections.abc import Sequence

from gpufleet.hub.queries.asking import Asking
from gpufleet.hub.usage.prices import Prices
from gpufleet.hub.usage.questions import UsageQuestions
from gpufleet.model.usage import Dimension, UsageAnswer
from gpufleet.ports import Registry, Store


class UsageQueries:
    """Answers with GPU-hours, energy and cost: of all allocations, or of a tenant's."""

    def __init__(self, *, registry: Registry, store: Store, asking: Asking, prices: Prices) -> None:
        self._questions = UsageQuestions(registry=registry, store=store, prices=prices)
        self._asking = asking

    async def of(self, start: int, end: int, by: Sequence[Dimension], tenant: str | None) -> UsageAnswer:
        """Answer for a time, nanoseconds since 1970, `end` excluded.

        Raises:
            QuestionError: if the question cannot be meant, or is about too much.
        """
        return await self._asking.ask(lambda: self._questions.ask(start, end, by, tenant))
