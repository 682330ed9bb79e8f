"""What is said where a server says no, or nothing."""

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError, ProtocolError, ReadTimeoutError

from gpufleet.stores.clickhouse.connection.client import MOST, words_of

URL = "/?session_id=1f&query_id=2e&database=fleet&param_machines=%5B%27secret-node%27%5D"


def of_transport(cause: Exception) -> str:
    error = OperationalError(f"Error {cause} executing HTTP request attempt 1 (http://db:8123)")
    error.__cause__ = cause
    return words_of(error)


def test_a_server_that_is_away_is_told_of_without_the_address_of_a_request() -> None:
    refused = NewConnectionError(
        HTTPConnection("db", 8123), "Failed to establish a new connection: [Errno 111] refused"
    )
    words = "the server does not answer: "
    assert of_transport(MaxRetryError(None, URL, refused)) == (  # type: ignore[arg-type]
        f"{words}Failed to establish a new connection: [Errno 111] refused"
    )
    assert of_transport(ProtocolError("Connection aborted.")) == f"{words}Connection aborted."
    late = ReadTimeoutError(None, URL, "HTTPConnectionPool(host='db', port=8123): Read timed out.")  # type: ignore[arg-type]
    assert "secret-node" not in of_transport(late)
    assert of_transport(late).endswith("Read timed out.")


def test_what_a_server_says_comes_without_its_wrapping() -> None:
    told = DatabaseError(
        "Received ClickHouse exception, code: 60, server response: Code: 60. DB::Exception: Table fleet.x does not\n "
        "exist. (UNKNOWN_TABLE) (version 25.8.1.1 (official build)) (for url http://db:8123)"
    )
    assert words_of(told) == "Code: 60. DB::Exception: Table fleet.x does not exist. (UNKNOWN_TABLE)"
    assert words_of(DatabaseError("Code: 36. DB::Exception: no. (BAD_ARGUMENTS) (version 26.9.2.1)")) == (
        "Code: 36. DB::Exception: no. (BAD_ARGUMENTS)"
    )
    assert words_of(ProgrammingError("")) == "ProgrammingError"
    assert len(words_of(DatabaseError("x" * 5000))) == MOST


def test_what_to_do_is_said_with_it() -> None:
    assert "docs/operations.md has its grants" in words_of(ProgrammingError("Setting async_insert is readonly"))
    assert words_of(DatabaseError("Code: 516. no (AUTHENTICATION_FAILED)")).endswith("is written as %XX")
