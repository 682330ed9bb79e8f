"""`nvidia-smi -q` and `nvidia-smi vgpu -q`."""

import re

from gpufleet.codecs.nvidia_smi import parse_text
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.decoding.smi import Outputs, decode_outputs

_GPU = re.compile(rb"(?m)^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7][ \r]*\n {2,8}\S")


def _fits(content: bytes) -> bool:
    return _GPU.search(content[: 1 << 16]) is not None


def _decode(source: Source) -> Decoded:
    return decode_outputs(source, [Outputs(log=parse_text(source.content))])


TEXT = Format(name="nvidia-smi-text", help="nvidia-smi -q or vgpu -q", fits=_fits, decode=_decode)
