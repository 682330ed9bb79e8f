"""`nvidia-smi --query-gpu=... --format=csv`, with its header."""

from gpufleet.codecs.nvidia_smi import parse_csv
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.decoding.smi import Outputs, decode_outputs
from gpufleet.model.errors import WireError
from gpufleet.readers.nvidia_smi.mapping.account import READ_OF_CSV


def _fits(content: bytes) -> bool:
    try:
        columns = parse_csv(content[: 1 << 16]).columns
    except WireError:
        return False
    return bool(READ_OF_CSV & set(columns))


def _decode(source: Source) -> Decoded:
    table = parse_csv(source.content)
    if not {"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"} & set(table.columns):
        raise WireError("csv", "no column names the GPU: ask for uuid or pci.bus_id as well")
    return decode_outputs(source, [Outputs(table=table)])


CSV = Format(name="nvidia-smi-csv", help="nvidia-smi --query-gpu=... --format=csv", fits=_fits, decode=_decode)
