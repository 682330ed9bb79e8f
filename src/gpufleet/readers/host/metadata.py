"""Metadata services of clouds: bounded HTTP requests to the link-local address.

Only the fields of an instance are requested: no user data, no attributes and no credentials. Proxies are not used and
redirects are not followed: the answer is from the dialled address.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from gpufleet.fleet.machine_ids import AWS, AZURE, GCP
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.readers.host.parse.cloud import InstanceData, parse_identity_document, parse_metadata_text
from gpufleet.readers.host.parse.text import decode

LINK_LOCAL = "http://169.254.169.254"
"""Address of the metadata services of all supported providers."""

MAX_BYTES = 16 << 10
"""Maximum size of an answer; an identity document has about 500 bytes."""

TIMEOUT_SECONDS = 2.0
"""Timeout of all requests of a pass together."""

TOKEN_SECONDS = 60
"""Validity of a token of AWS (IMDSv2). It is used at once, and not kept."""

AZURE_VERSION = "2021-02-01"

_Get = Callable[..., Awaitable[bytes]]


class CloudMetadata:
    """Reads the instance from the metadata service of its provider.

    Args:
        url: address of the service. Only tests use another one.
        timeout_seconds: timeout of all requests of a call.
    """

    def __init__(self, url: str = LINK_LOCAL, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.url = url
        self._timeout = timeout_seconds

    def knows(self, provider: str) -> bool:
        """Return whether the service of a provider can be read."""
        return provider in _PROVIDERS

    async def fetch(self, provider: str) -> InstanceData:
        """Return the instance as the service reports it; unknown texts are empty.

        Args:
            provider: one that `knows` returns true for.

        Raises:
            ChannelError: on timeout, a status other than 200, or an answer that exceeds the limit.
            WireError: if an answer is malformed.
        """
        try:
            async with (
                asyncio.timeout(self._timeout),
                aiohttp.ClientSession(auto_decompress=False, trust_env=False) as session,
            ):

                async def request(path: str, method: str = "GET", *, expect: str = "", **headers: str) -> bytes:
                    return await self._request(session, method, path, headers, expect)

                return await _PROVIDERS[provider](request)
        except TimeoutError:
            message = f"the metadata service did not answer within {self._timeout:g} s"
            raise ChannelTimeoutError(message, ChannelProblem.TIMEOUT) from None
        except aiohttp.ClientError as error:
            message = f"the metadata service is not reachable: {type(error).__name__}"
            raise ChannelError(message, ChannelProblem.UNREACHABLE) from None

    async def _request(
        self, session: aiohttp.ClientSession, method: str, path: str, headers: Mapping[str, str], expect: str
    ) -> bytes:
        """Return the body of an answer. `expect` is the value of `Metadata-Flavor` that it must have, if any."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with session.request(method, f"{self.url}{path}", headers=sent, allow_redirects=False) as answer:
            if answer.status != 200:
                is_off = answer.status in (401, 403, 404)
                problem = ChannelProblem.NOT_ENABLED if is_off else ChannelProblem.PROTOCOL
                raise ChannelError(f"the metadata service answers {answer.status} for {path}", problem)
            if expect and answer.headers.get("Metadata-Flavor") != expect:
                message = "what answers at the address of the metadata service is not that service"
                raise ChannelError(message, ChannelProblem.IDENTITY_MISMATCH)
            found = bytearray()
            async for chunk in answer.content.iter_chunked(MAX_BYTES):
                found += chunk
                if len(found) > MAX_BYTES:
                    message = f"the metadata service answers with more than {MAX_BYTES} bytes for {path}"
                    raise ChannelError(message, ChannelProblem.TOO_LARGE)
            return bytes(found)


async def _read_aws(get: _Get) -> InstanceData:
    token = await get("/latest/api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)})
    path = "/latest/dynamic/instance-identity/document"
    text = parse_metadata_text(decode(token))
    return parse_identity_document(await get(path, **{"X-aws-ec2-metadata-token": text}), path)


async def _read_gcp(get: _Get) -> InstanceData:
    async def text(name: str) -> str:
        found = await get(f"/computeMetadata/v1/instance/{name}", expect="Google", Metadata_Flavor="Google")
        return parse_metadata_text(decode(found)).rpartition("/")[2]  # projects/NUMBER/zones/NAME

    id_, type_, zone = await text("id"), await text("machine-type"), await text("zone")
    return InstanceData(platform="gce", id=id_, type=type_, region=zone.rpartition("-")[0], zone=zone)


async def _read_azure(get: _Get) -> InstanceData:
    async def text(name: str) -> str:
        path = f"/metadata/instance/compute/{name}?api-version={AZURE_VERSION}&format=text"
        return parse_metadata_text(decode(await get(path, Metadata="true")))

    id_, type_, region, zone = await text("vmId"), await text("vmSize"), await text("location"), await text("zone")
    return InstanceData(platform="azure", id=id_.lower(), type=type_, region=region, zone=zone)


_PROVIDERS: Mapping[str, Callable[[_Get], Awaitable[InstanceData]]] = {
    AWS: _read_aws,
    GCP: _read_gcp,
    AZURE: _read_azure,
}
