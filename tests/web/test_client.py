"""HTTP client of the commands and the library, against a server that is not a hub."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trustme

from gpufleet.web.client import RequestError, ResponseError, ServerAccess, get, get_pages, with_query
from tests.support.exporters import PageServer, serving

ANYONE = ServerAccess()


@pytest.fixture
def server() -> Iterator[tuple[PageServer, str]]:
    with serving(b"[]") as (pages, address):
        yield pages, address.removesuffix("/metrics")


def test_pages_of_a_plain_list_are_joined(server: tuple[PageServer, str]) -> None:
    pages, url = server
    pages.headers["link"] = '</v1/list?cursor=x>; rel="next"'

    def page() -> bytes:
        if len(pages.requests) < 2:
            return b'["a"]'
        pages.headers.pop("link")
        return b'["b"]'

    pages.page = page
    assert msgspec.json.decode(get(url, "/v1/list", ANYONE)) == ["a", "b"]


def test_pages_of_a_list_with_cursor_are_joined(server: tuple[PageServer, str]) -> None:
    pages, url = server
    pages.page = lambda: (
        b'{"items":[1,2],"next":"x","at":1}' if len(pages.requests) == 1 else b'{"items":[3],"next":null,"at":2}'
    )
    assert msgspec.json.decode(get_pages(url, "/v1/things", {"cluster": None}, ANYONE)) == {
        "items": [1, 2, 3],
        "at": 2,
        "next": None,
    }


def test_repeated_cursor_ends_the_list(server: tuple[PageServer, str]) -> None:
    pages, url = server
    pages.page = b'{"items":[1],"next":"x"}'
    assert msgspec.json.decode(get_pages(url, "/v1/things", {}, ANYONE))["items"] == [1, 1]


def test_redirect_is_an_error(server: tuple[PageServer, str]) -> None:
    pages, url = server
    pages.status, pages.headers["location"] = 302, "http://127.0.0.1:1/"
    with pytest.raises(ResponseError) as raised:
        get(url, "/v1/fleet", ServerAccess(lambda: "gpf_x"))
    assert (raised.value.status, len(pages.requests)) == (302, 1)


def test_other_content_is_a_request_error(server: tuple[PageServer, str]) -> None:
    pages, url = server
    pages.page = b"<html>"
    with pytest.raises(RequestError, match="gpufleet hub"):
        get_pages(url, "/v1/things", {}, ANYONE)


def test_unknown_authority_names_the_option(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with serving(b"{}", tls=context) as (_, address):
        url = address.removesuffix("/metrics")
        with pytest.raises(RequestError, match="--ca FILE"):
            get(url, "/", ServerAccess(ca_option="--ca FILE"))
        assert get(url, "/", ServerAccess(ca=tmp_path / "ca.pem")) == b"{}"


def test_query_repeats_sequences_and_leaves_out_none() -> None:
    assert with_query("/v1/findings", {"state": ("open", "unknown"), "cluster": None}) == (
        "/v1/findings?state=open&state=unknown"
    )
