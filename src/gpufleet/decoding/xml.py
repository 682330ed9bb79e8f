"""`nvidia-smi -q -x`."""

from gpufleet.codecs.nvidia_smi import parse_xml
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.decoding.smi import Outputs, decode_outputs


def _fits(content: bytes) -> bool:
    return b"<nvidia_smi_log" in content[: 1 << 16]


def _decode(source: Source) -> Decoded:
    return decode_outputs(source, [Outputs(log=parse_xml(source.content))])


XML = Format(name="nvidia-smi-xml", help="nvidia-smi -q -x", fits=_fits, decode=_decode)
