"""Several batches in one post, as a relay sends them."""

from gpufleet.codecs.bundle import unpack
from gpufleet.decoding.batch import BATCH, decode_bodies
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.model.errors import WireError


def _fits(content: bytes) -> bool:
    """Tell by the whole of it: its lengths add up, and its first body is a batch."""
    try:
        bodies = unpack(content)
    except WireError:
        return False
    return BATCH.fits(bodies[0])


def _decode(source: Source) -> Decoded:
    return decode_bodies(source, unpack(source.content))


BUNDLE = Format(name="bundle", help="several batches in one post, as a relay sends them", fits=_fits, decode=_decode)
