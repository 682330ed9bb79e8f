"""One bounded question to a Netdata."""

import zlib
from collections.abc import Callable

import aiohttp

from gpufleet.model.errors import ChannelError, ChannelProblem

MAX_PAGE_BYTES = 16 << 20
"""A Netdata with 2,000 charts answers with about 1.5 MB."""

ACCEPT = {"Accept-Encoding": "gzip"}
_GZIP = 16 + zlib.MAX_WBITS

PATH = "/api/v1/allmetrics?format=json"


async def fetch(url: str, timeout_seconds: float) -> bytes:
    """Return the newest values of every chart. Redirects are not followed, and proxies not asked.

    Raises:
        ChannelError: if it does not answer in time, with 200 and within the bound.
    """
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=timeout_seconds), auto_decompress=False, trust_env=False
            ) as session,
            session.get(url.rstrip("/") + PATH, headers=ACCEPT, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise ChannelError(f"{url}: it answers {answer.status}", ChannelProblem.PROTOCOL)
            unpack = _unpacking(url, answer.headers.get("Content-Encoding", ""))
            page = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                page += unpack(chunk, MAX_PAGE_BYTES + 1 - len(page))
                if len(page) > MAX_PAGE_BYTES:
                    raise ChannelError(f"{url}: more than {MAX_PAGE_BYTES} bytes", ChannelProblem.TOO_LARGE)
            return bytes(page)
    except TimeoutError:
        raise ChannelError(f"{url}: no answer in {timeout_seconds:g} s", ChannelProblem.TIMEOUT) from None
    except zlib.error as error:
        raise ChannelError(
            f"{url}: it says gzip, and that cannot be unpacked: {error}", ChannelProblem.PROTOCOL
        ) from None
    except aiohttp.ClientError as error:
        raise ChannelError(f"{url}: {error}", ChannelProblem.UNREACHABLE) from None


def _unpacking(url: str, encoding: str) -> Callable[[bytes, int], bytes]:
    """Return what unpacks the next bytes, to so many at most: a small answer can stand for any number of them."""
    if encoding in ("", "identity"):
        return lambda data, _: data
    if encoding != "gzip":
        raise ChannelError(f"{url}: it answers in {encoding[:20]!r}, which was not asked for", ChannelProblem.PROTOCOL)
    return zlib.decompressobj(_GZIP).decompress
