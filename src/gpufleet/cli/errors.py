"""What a command says when it cannot do what was asked."""

from gpufleet.model.errors import GpufleetError


class CommandError(GpufleetError):
    """A command cannot answer; its text says why and what to do."""
