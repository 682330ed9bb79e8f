"""Simulated fleet of the soak as remote write bodies for peers: the same values at the same times.

Light client: labels are encoded once, and the values and times of each step are written into the same bytes.
"""

import struct
from collections.abc import Iterator, Sequence

import cramjam

from benchmarks.soak_load import GPUS_PER_NODE, METRICS, row_of
from gpufleet.codecs.protobuf import write_bytes, write_varint

NODES_PER_BODY = 16
_DOUBLE = struct.Struct("<d")
_EMPTY_SAMPLE = b"\x09" + bytes(8) + b"\x10" + bytes(6)  # value, and milliseconds since 1970, which take six bytes
_TIME_OFFSET = 10


class Body:
    """Request body with the series of some nodes. The series are the same at every step."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes
        content = bytearray()
        self._places: list[int] = []
        for node in nodes:
            for gpu in range(GPUS_PER_NODE):
                for metric in METRICS:
                    labels = _labels(f"gpufleet_{metric.name}", node, gpu)
                    content += write_bytes(0x0A, labels + write_bytes(0x12, _EMPTY_SAMPLE))
                    self._places.append(len(content) - len(_EMPTY_SAMPLE) + 1)
        self._content = content

    def at(self, milliseconds: int) -> bytes:
        """Return the body for an instant."""
        when = write_varint(milliseconds)
        values = (
            value for node in self._nodes for gpu in range(GPUS_PER_NODE) for value in numbers(node, gpu, milliseconds)
        )
        content = self._content
        for place, value in zip(self._places, values, strict=True):
            _DOUBLE.pack_into(content, place, value)
            content[place + _TIME_OFFSET - 1 : place + _TIME_OFFSET + 5] = when
        return bytes(cramjam.snappy.compress_raw(content))


def numbers(node: int, gpu: int, milliseconds: int) -> Iterator[float]:
    """Yield a GPU's values. A state is its index in the list of states, as remote write has only numbers."""
    for metric, value in zip(METRICS, row_of(node, gpu, milliseconds * 1_000_000), strict=True):
        yield float(metric.states.index(value)) if isinstance(value, str) else float(value)


def _labels(name: str, node: int, gpu: int) -> bytes:
    labels = {
        "__name__": name,
        "UUID": f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}",
        "cluster": "local",
        "gpu": str(gpu),
        "job": "gpus",
        "node": f"soak-{node:06d}",
        "pci_bus_id": f"0000:{0x10 + gpu:02x}:00.0",
    }
    return b"".join(
        write_bytes(0x0A, write_bytes(0x0A, label.encode()) + write_bytes(0x12, value.encode()))
        for label, value in labels.items()
    )
