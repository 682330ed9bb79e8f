"""State of an imported GPU, and the events that follow."""

import asyncio

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round
from gpufleet.readers.exporter.fetch import ScrapedPage
from gpufleet.readers.exporter.reader import ExporterReader
from tests.fakes.clock import FakeClock

LABELS = 'kind="gpu",side="host",uuid="GPU-1",node="n"'
OK = f'gpufleet_gpu_state{{{LABELS},state="ok"}} 1\ngpufleet_gpu_performance_state{{{LABELS}}} 0\n'
LOST = OK + f'gpufleet_reading_absent{{{LABELS},metric="gpu_power_watts",reason="gpu_lost"}} 1\n'
THEIRS = 'nvidia_smi_gpu_info{uuid="1",name="H200",serial="[GPU is lost]"} 1\nnvidia_smi_pstate{uuid="1"} 0\n'


class Pages:
    """Page fetcher that returns the pages in order."""

    where = "http://exporter/metrics"

    def __init__(self, *pages: str) -> None:
        self._pages = list(pages)

    async def fetch(self) -> ScrapedPage:
        return ScrapedPage(self._pages.pop(0).encode(), openmetrics=False)


def passes(*pages: str) -> list[Round]:
    reader = ExporterReader("x", Pages(*pages), FakeClock())

    async def read() -> list[Round]:
        return [await reader.read(Lane.FAST) for _ in pages]

    return asyncio.run(read())


def states(done: Round) -> list[object]:
    return [sample.values.get("gpu_state") for sample in done.samples if sample.view is not None]


def test_lost_reading_of_a_page_is_a_lost_gpu() -> None:
    found = passes(OK, LOST, LOST, OK)
    assert [states(done) for done in found] == [["ok"], ["lost"], ["lost"], ["ok"]]
    assert [[event.kind for event in done.events] for done in found] == [[], ["gpu_lost"], [], ["gpu_recovered"]]
    (event,) = found[1].events
    assert event.attributes == {"sources": "exporter/x"}


@pytest.mark.parametrize(
    ("text", "state", "kind"),
    [
        ("[GPU is lost]", "lost", "gpu_lost"),
        ("[GPU requires reset]", "reset_required", "gpu_reset_required"),
        ("[GPU requires restart]", "reset_required", "gpu_reset_required"),
        ("Reset Required", "reset_required", "gpu_reset_required"),
    ],
)
def test_placeholder_in_a_label_is_evidence(text: str, state: str, kind: str) -> None:
    (done,) = passes(THEIRS.replace("[GPU is lost]", text))
    assert states(done) == [state]
    assert [event.kind for event in done.events] == [kind]


def test_lost_gpu_of_a_page_without_states_recovers_by_its_core_readings() -> None:
    info = 'nvidia_smi_gpu_info{uuid="1",name="H200",serial="7"} 1\n'
    no_proof = info + 'nvidia_smi_pstate{uuid="1"} 0\n'
    works = no_proof + 'nvidia_smi_temperature_gpu{uuid="1"} 40\n'
    found = passes(works, THEIRS, no_proof, works, works, THEIRS)
    kinds = [[event.kind for event in done.events] for done in found]
    assert kinds == [[], ["gpu_lost"], [], ["gpu_recovered"], [], ["gpu_lost"]]


INFO = 'nvidia_smi_gpu_info{{uuid="{}",pci_bus_id="00000000:83:00.0",name="H200",serial="{}"}} 1\n'
UNNAMED = INFO.format("[gpu is lost]", "[GPU is lost]") + "nvidia_smi_command_exit_code 0\n"


def test_dialect_of_a_page_with_nothing_but_a_lost_gpu_is_known() -> None:
    """Cells without a number have no series."""
    (done,) = passes(UNNAMED)
    assert states(done) == ["lost"]
    assert [event.kind for event in done.events] == ["gpu_lost"]


@pytest.mark.parametrize(
    ("after", "events"), [("1", ["gpu_recovered"]), ("2", [])], ids=["the same GPU", "another GPU"]
)
def test_card_in_place_of_a_lost_one_has_not_recovered(after: str, events: list[str]) -> None:
    before, later = (INFO.format(one, 7) + f'nvidia_smi_temperature_gpu{{uuid="{one}"}} 40\n' for one in ("1", after))
    found = passes(before, UNNAMED, later)
    assert [[event.kind for event in done.events] for done in found] == [[], ["gpu_lost"], events]
