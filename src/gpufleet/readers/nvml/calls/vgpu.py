"""vGPU instances: how they are found, and what is asked of each."""

from gpufleet.readers.nvml.calls.call import Calls, Found
from gpufleet.readers.nvml.context import Context

FIND_LABELS: tuple[str, ...] = ()
"""Functions that `find` enters, for breadcrumbs."""

CALLS: Calls = {}
"""What is asked of each of them."""


def find(context: Context) -> list[Found]:
    """Return the vGPU instances of a GPU that hosts them.

    Raises:
        NVMLError: if the driver does not tell.
    """
    del context
    return []
