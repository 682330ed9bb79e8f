"""Where an answer comes from: the `source` field of the allocation contract."""

import enum


class Provenance(enum.StrEnum):
    """Who measured the values of an answer."""

    HOST_LOCAL_PROBE = "host_local_probe"  # gpufleet on the machine itself
    HOST_NETDATA = "host_netdata"  # the operator's Netdata: fallback for bare metal, never for a guest
    SLICE_GUEST = "slice_guest"  # read from inside the guest
    SLICE_VGPU_HOST = "slice_vgpu_host"  # the guest is silent; the host sees that very vGPU instance
    IMPORTED = "imported"  # another exporter's values
    UNAVAILABLE = "unavailable"  # nobody measured: a reason says why
