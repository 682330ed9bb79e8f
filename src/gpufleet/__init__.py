"""gpufleet: truthful GPU telemetry from every host, VM guest, pod and job, to one trusted store."""

__version__ = "0.1.0"
