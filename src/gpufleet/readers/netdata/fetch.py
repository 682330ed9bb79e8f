"""Bounded HTTP requests to a Netdata."""

import zlib
from collections.abc import Callable

import aiohttp

from gpufleet.model.errors import ChannelError, ChannelProblem

MAX_PAGE_BYTES = 16 << 20
"""Maximum page size; a Netdata with 2,000 charts sends about 1.5 MB."""

ACCEPT = {"Accept-Encoding": "gzip"}
_GZIP = 16 + zlib.MAX_WBITS

PATH = "/api/v1/allmetrics?format=json"


async def fetch(url: str, timeout_seconds: float) -> bytes:
    """Return the newest values of every chart. Redirects are not followed, and proxies are not used.

    Raises:
        ChannelError: on timeout, a status other than 200, or a page that exceeds the limit.
    """
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=timeout_seconds), auto_decompress=False, trust_env=False
            ) as session,
            session.get(url.rstrip("/") + PATH, headers=ACCEPT, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ChannelError(f"{url}: status {response.status}", ChannelProblem.PROTOCOL)
            decompress = _decompressor(url, response.headers.get("Content-Encoding", ""))
            page = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                page += decompress(chunk, MAX_PAGE_BYTES + 1 - len(page))
                if len(page) > MAX_PAGE_BYTES:
                    raise ChannelError(f"{url}: the page exceeds {MAX_PAGE_BYTES} bytes", ChannelProblem.TOO_LARGE)
            return bytes(page)
    except TimeoutError:
        raise ChannelError(f"{url}: no response in {timeout_seconds:g} s", ChannelProblem.TIMEOUT) from None
    except zlib.error as error:
        raise ChannelError(
            f"{url}: the gzip encoding of the response is invalid: {error}", ChannelProblem.PROTOCOL
        ) from None
    except aiohttp.ClientError as error:
        raise ChannelError(f"{url}: {error}", ChannelProblem.UNREACHABLE) from None


def _decompressor(url: str, encoding: str) -> Callable[[bytes, int], bytes]:
    """Return a function that decompresses a chunk, limited in length: a small response can expand to any size."""
    if encoding in ("", "identity"):
        return lambda data, _: data
    if encoding != "gzip":
        raise ChannelError(
            f"{url}: the response has the encoding {encoding[:20]!r}, which was not requested", ChannelProblem.PROTOCOL
        )
    return zlib.decompressobj(_GZIP).decompress
