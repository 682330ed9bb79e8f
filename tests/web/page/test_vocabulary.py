"""Vocabulary of the web page."""

from gpufleet.model.absence import REASON_TEXTS, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.finding import FindingState, Severity
from gpufleet.model.liveness import State
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.reading import Provenance
from gpufleet.model.view import Scope
from gpufleet.web.page.vocabulary import (
    FINDING_STATE_TEXTS,
    SCOPE_TEXTS,
    SEVERITY_TEXTS,
    SOURCE_TEXTS,
    STATE_TEXTS,
    vocabulary,
)


def test_every_source_reason_state_and_scope_has_a_sentence() -> None:
    assert set(SOURCE_TEXTS) == set(Provenance)
    assert set(REASON_TEXTS) == set(Reason)
    assert set(STATE_TEXTS) == set(State)
    assert set(SCOPE_TEXTS) == set(Scope)
    assert set(SEVERITY_TEXTS) == set(Severity)
    assert set(FINDING_STATE_TEXTS) == set(FindingState)


def test_every_metric_has_its_unit_and_theme() -> None:
    document = vocabulary()
    assert set(document["metrics"]) == {*CATALOGUE, *PROCESS_READINGS}
    for name, metric in CATALOGUE.items():
        assert document["metrics"][name]["unit"] == metric.unit
    assert {one["theme"] for one in document["metrics"].values()} <= set(document["themes"])
