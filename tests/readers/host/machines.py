"""Fixtures and fakes of the host reader tests."""

from pathlib import Path

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.ports.channel import FetchPlan, FetchResult, Files
from gpufleet.readers.host import HostReader
from tests.support.trees import plant

FIXTURES = Path(__file__).parent / "fixtures"
MACHINES = ("bare_metal", "container", "guest", "kubevirt_node")
NOW = 1_800_000_000_000_000_000


class FixedClock:
    """Clock that always returns the same time."""

    def now_ns(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class Failing:
    """Channel on which some paths fail."""

    def __init__(self, files: Files, failures: dict[str, str]) -> None:
        self._files = files
        self._failures = failures

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        fetched = await self._files.fetch(plan)
        for path, name in self._failures.items():
            found = [fetched.files.pop(path, None), fetched.links.pop(path, None), fetched.filesystems.pop(path, None)]
            if any(item is not None for item in found) or path in fetched.errors:
                fetched.errors[path] = name
        return fetched


def build(name: str, root: Path) -> Path:
    """Create a fixture tree under `root` and return its path."""
    plant((FIXTURES / f"{name}.tree").read_text(encoding="utf-8"), root)
    return root


async def read(root: Path, lane: Lane, failures: dict[str, str] | None = None) -> Round:
    """Make one pass over the machine under `root`."""
    return await HostReader(Failing(LocalFiles(root), failures or {}), FixedClock()).read(lane)


def dims(sample: Sample, metric: str) -> dict[tuple[str, ...], Value | Absent]:
    """Return the values of a metric with dimensions, by labels."""
    return {item.labels: item.value for item in sample.dims if item.metric == metric}
