"""MIG devices and vGPU instances of a lost GPU, which its reader can no longer list. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample

MAX_LISTS = 256
"""Maximum number of remembered lists: 64 GPUs in four lanes. The oldest is dropped."""


class InstanceMemory:
    """Instances of each GPU in the newest pass that listed them. Those of a lost GPU are absent, not gone."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Lane], tuple[Sample, ...]] = {}  # by key of the GPU and lane

    def missing(self, samples: Iterable[Sample], lost: Mapping[str, Absent], lane: Lane) -> list[Sample]:
        """Record the instances of a pass; return absent readings of those that it no longer lists.

        Args:
            samples: of the pass.
            lost: key of each lost GPU to the reason.
            lane: lane of the pass.
        """
        gpus: dict[str, int] = {}
        listed: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample.view is not None and sample.view.parent is None:
                gpus[sample.view.key] = sample.measured_at
            elif sample.view is not None and sample.view.parent is not None:
                listed.setdefault(sample.view.parent, []).append(sample)
        absent: list[Sample] = []
        for gpu, at in gpus.items():
            present = listed.get(gpu, [])
            if gpu not in lost:
                self._known.pop((gpu, lane), None)
                if present:
                    self._known[gpu, lane] = tuple(present)
                continue
            keys = {one.view.key for one in present if one.view is not None}
            before = self._known.get((gpu, lane), ())
            left = [one for one in before if one.view is not None and one.view.key not in keys]
            absent += [_absent(one, lost[gpu], at) for one in left]
        while len(self._known) > MAX_LISTS:
            del self._known[next(iter(self._known))]
        return absent


def _absent(sample: Sample, why: Absent, at: int) -> Sample:
    return msgspec.structs.replace(
        sample,
        measured_at=at,
        values=dict.fromkeys(sample.values, why),
        dims=tuple([DimValue(dim.metric, dim.labels, why) for dim in sample.dims]),
        processes=None,
    )
