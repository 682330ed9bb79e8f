"""Content negotiation: `Accept` and `Accept-Encoding` of a scrape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.exporters.exposition import PageFormat
from gpufleet.web.agent.negotiation import accepts_gzip, choose_syntax

TEXT, OPENMETRICS = PageFormat.TEXT, PageFormat.OPENMETRICS

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "syntax"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/*", TEXT),
        ("application/*", OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ('APPLICATION/OpenMetrics-Text; Version="1.0.0"', OPENMETRICS),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0", TEXT),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.5", TEXT),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.3", OPENMETRICS),
        ("application/openmetrics-text;q=0,*/*", TEXT),
        ("text/plain;q=0,*/*;q=0.1", OPENMETRICS),
        ("text/plain;q=0", TEXT),
        ("*/*,text/plain;q=0.1,application/openmetrics-text;q=0.2", OPENMETRICS),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text;version=0.0.1,*/*;q=0.5", TEXT),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", TEXT),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,*/*;q=0.1", TEXT),
        ("application/openmetrics-text;q=nan,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;q=7,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;q=-1,text/plain;q=0.1", TEXT),
        (";;,,;q=,=", TEXT),
    ],
)
def test_syntax_with_the_highest_quality_is_chosen(accept: str, syntax: PageFormat) -> None:
    choice = choose_syntax(accept)
    assert choice.syntax is syntax
    assert choice.content_type.startswith(syntax.value)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS_2, OPENMETRICS.value),
        (PROMETHEUS_3, f"{OPENMETRICS.value}; escaping=allow-utf-8"),
        ("text/plain;version=0.0.4;escaping=underscores", f"{TEXT.value}; escaping=underscores"),
        ("text/plain;escaping=values", f"{TEXT.value}; escaping=values"),
        ("text/plain;escaping=dots", TEXT.value),
        ("text/plain;escaping=x\r\ny: z", TEXT.value),
        ("application/openmetrics-text;escaping=values;q=0.1,text/plain", TEXT.value),
    ],
)
def test_escaping_is_stated_if_requested_and_supported(accept: str, content_type: str) -> None:
    assert choose_syntax(accept).content_type == content_type


@pytest.mark.parametrize(
    ("accept_encoding", "gzip"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br", True),
        ("deflate, br, zstd", False),
        ("*", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("*;q=0", False),
        ("gzip;q=0.5, identity", False),
        ("gzip;q=0.5, identity;q=0.5", True),
        ("identity;q=0.5, *;q=0.1", False),
        ("gzip;q=x", False),
        ("gzip;q=1.001", False),
    ],
)
def test_gzip_is_used_only_if_accepted(accept_encoding: str, gzip: bool) -> None:
    assert accepts_gzip(accept_encoding) is gzip


@given(st.text(max_size=200))
def test_any_accept_header_yields_a_printable_content_type(header: str) -> None:
    choice = choose_syntax(header)
    assert choice.content_type.startswith(choice.syntax.value)
    assert choice.content_type.isprintable()
    accepts_gzip(header)
