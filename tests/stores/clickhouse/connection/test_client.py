"""What is said where a server says no, or nothing."""

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError, ProtocolError, ReadTimeoutError

from gpufleet.stores.clickhouse.connection.client import MAX_MESSAGE_CHARS, error_text

URL = "/?session_id=1f&query_id=2e&database=fleet&param_machines=%5B%27secret-node%27%5D"


def of_transport(cause: Exception) -> str:
    error = OperationalError(f"Error {cause} executing HTTP request attempt 1 (http://db:8123)")
    error.__cause__ = cause
    return error_text(error)


def test_error_of_an_unreachable_server_has_no_request_url() -> None:
    refused = NewConnectionError(
        HTTPConnection("db", 8123), "Failed to establish a new connection: [Errno 111] refused"
    )
    words = "the server does not respond: "
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
    assert error_text(told) == "Code: 60. DB::Exception: Table fleet.x does not exist. (UNKNOWN_TABLE)"
    assert error_text(DatabaseError("Code: 36. DB::Exception: no. (BAD_ARGUMENTS) (version 26.9.2.1)")) == (
        "Code: 36. DB::Exception: no. (BAD_ARGUMENTS)"
    )
    assert error_text(ProgrammingError("")) == "ProgrammingError"
    assert len(error_text(DatabaseError("x" * 5000))) == MAX_MESSAGE_CHARS


def test_what_to_do_is_said_with_it() -> None:
    assert "docs/operations/databases.md" in error_text(ProgrammingError("Setting async_insert is readonly"))
    assert "%XX" in error_text(DatabaseError("Code: 516. no (AUTHENTICATION_FAILED)"))
