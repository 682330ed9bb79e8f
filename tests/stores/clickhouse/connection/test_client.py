"""Error texts for refusals of a server and for failed connections."""

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError, ProtocolError, ReadTimeoutError

from gpufleet.stores.clickhouse.connection.client import MAX_MESSAGE_CHARS, error_text

URL = "/?session_id=1f&query_id=2e&database=fleet&param_machines=%5B%27secret-node%27%5D"


def transport_error_text(cause: Exception) -> str:
    error = OperationalError(f"Error {cause} executing HTTP request attempt 1 (http://db:8123)")
    error.__cause__ = cause
    return error_text(error)


def test_error_of_an_unreachable_server_has_no_request_url() -> None:
    refused = NewConnectionError(
        HTTPConnection("db", 8123), "Failed to establish a new connection: [Errno 111] refused"
    )
    prefix = "the server does not respond: "
    assert transport_error_text(MaxRetryError(None, URL, refused)) == (  # type: ignore[arg-type]
        f"{prefix}Failed to establish a new connection: [Errno 111] refused"
    )
    assert transport_error_text(ProtocolError("Connection aborted.")) == f"{prefix}Connection aborted."
    late = ReadTimeoutError(None, URL, "HTTPConnectionPool(host='db', port=8123): Read timed out.")  # type: ignore[arg-type]
    assert "secret-node" not in transport_error_text(late)
    assert transport_error_text(late).endswith("Read timed out.")


def test_server_error_is_shown_without_the_client_wrapping() -> None:
    error = DatabaseError(
        "Received ClickHouse exception, code: 60, server response: Code: 60. DB::Exception: Table fleet.x does not\n "
        "exist. (UNKNOWN_TABLE) (version 25.8.1.1 (official build)) (for url http://db:8123)"
    )
    assert error_text(error) == "Code: 60. DB::Exception: Table fleet.x does not exist. (UNKNOWN_TABLE)"
    assert error_text(DatabaseError("Code: 36. DB::Exception: no. (BAD_ARGUMENTS) (version 26.9.2.1)")) == (
        "Code: 36. DB::Exception: no. (BAD_ARGUMENTS)"
    )
    assert error_text(ProgrammingError("")) == "ProgrammingError"
    assert len(error_text(DatabaseError("x" * 5000))) == MAX_MESSAGE_CHARS


def test_error_text_contains_the_remedy() -> None:
    assert "docs/operations/databases.md" in error_text(ProgrammingError("Setting async_insert is readonly"))
    assert "%XX" in error_text(DatabaseError("Code: 516. no (AUTHENTICATION_FAILED)"))
