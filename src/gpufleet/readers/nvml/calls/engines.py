"""How busy the engines are."""

from gpufleet.readers.nvml.calls.call import Call, Calls, custom, struct
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.context import Context
from gpufleet.readers.nvml.protocol import Value


def _engine(name: str) -> Call:
    """Return a call that gives percent and sample period; only the percent is kept."""

    def ask(context: Context) -> Value:
        percent: int = getattr(context.nvml, name)(context.handle)[0]
        return percent

    return custom(name, ask)


CALLS: Calls = {
    "fast": (
        struct("nvmlDeviceGetUtilizationRates", "gpu", "memory"),
        _engine("nvmlDeviceGetEncoderUtilization"),
        _engine("nvmlDeviceGetDecoderUtilization"),
        _engine("nvmlDeviceGetJpgUtilization"),
        _engine("nvmlDeviceGetOfaUtilization"),
    ),
}

FIELDS: Fields = {}
