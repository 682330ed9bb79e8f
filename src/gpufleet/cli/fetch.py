"""Requests of the commands to agents and hubs: options for credentials, and errors of commands."""

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import msgspec

from gpufleet.cli.options import CommandError
from gpufleet.config.secret_files import TokenFile
from gpufleet.web import client
from gpufleet.web.client import TIMEOUT_SECONDS, Query, RequestError, ResponseError, ServerAccess


class HttpError(CommandError):
    """Error response of a server.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Access(msgspec.Struct, frozen=True):
    """Credentials and trusted authorities of a command.

    Attributes:
        token_file: file with the token to send; None sends none.
        ca: PEM file of trusted authorities; None means those of the system.
    """

    token_file: Path | None = None
    ca: Path | None = None

    @property
    def server(self) -> ServerAccess:
        """The same for the client."""
        token = None if self.token_file is None else TokenFile(str(self.token_file)).token
        return ServerAccess(token, self.ca, "--ca FILE or GPUFLEET_CA")


def get(base: str, path: str, access: Access | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> bytes:
    """GET `path` of the server at `base`. All pages of a plain list are joined unless `path` sets a limit.

    Raises:
        CommandError: if `base` is not an HTTP URL, or there is no response.
        HttpError: if its status is not 200. Contains the server's message.
        ConfigError: if the token cannot be read.
    """
    with command_errors():
        return client.get(base, path, (access or Access()).server, timeout_seconds=timeout_seconds)


def get_pages(
    base: str, path: str, query: Query, access: Access, most: int | None = None, *, page_size: int | None = None
) -> bytes:
    """GET all pages of a list as one; pages after the first `most` entries are not requested. Raises like `get`."""
    with command_errors():
        return client.get_pages(base, path, query, access.server, most, page_size=page_size)


def get_as(media_type: str, base: str, path: str, access: Access) -> tuple[bytes, str | None]:
    """GET `path` in a format; return the body and the path of the next page, if any. Raises like `get`."""
    with command_errors():
        return client.request(base, path, access.server, media_type=media_type)


def send(
    base: str,
    path: str,
    access: Access | None = None,
    *,
    method: str,
    body: bytes | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    media_type: str = "",
) -> bytes:
    """Send JSON with a method other than GET; return the body in the requested format. Raises like `get`."""
    with command_errors():
        return client.request(
            base,
            path,
            (access or Access()).server,
            method=method,
            content=body,
            timeout_seconds=timeout_seconds,
            media_type=media_type,
        )[0]


@contextlib.contextmanager
def command_errors() -> Iterator[None]:
    """Raise the client's errors as errors of a command."""
    try:
        yield
    except ResponseError as error:
        fix = ". Pass a token with --token-file FILE" if error.status == HTTPStatus.UNAUTHORIZED else ""
        raise HttpError(f"{error}{fix}", error.status) from error
    except RequestError as error:
        raise CommandError(str(error)) from error
