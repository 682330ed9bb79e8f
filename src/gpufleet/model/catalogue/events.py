"""Rows of the catalogue about what happened: XIDs by count, and who watches for them. Ids 460 to 479."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Absence, Lane, Metric, MetricKind, Storage, Subject, ValueType

XID_ERRORS = "gpu_xid_errors_total"
XID_ALL = "gpu_xid_events_total"
XID_LAST = "gpu_last_xid"
XID_LAST_AT = "gpu_last_xid_timestamp_seconds"
XID_SINCE = "gpu_xid_watched_since_timestamp_seconds"
DRIVER_EVENTS = "gpu_driver_events_watched"
LOG_LOST = "host_kernel_log_lost_messages_total"
RELEASED = "host_gpus_released"

_GPU = (Subject.GPU,)
_NOBODY = Absence(Reason.NOT_COLLECTED, "neither the kernel's log nor the driver's events can be watched here")
_NONE_YET = Absence(Reason.NO_DATA, "none was seen since the watch began")

# fmt: off
EVENT_METRICS = (
    Metric(id=460, name=XID_ERRORS, kind=MetricKind.COUNTER, type=ValueType.INT, low=0, dims=("xid",),
           help="XIDs of the GPU by number, since the watch began; a number that was never seen has no series",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.DIM, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",)),
    Metric(id=461, name=XID_ALL, kind=MetricKind.COUNTER, type=ValueType.INT, low=0,
           help="XIDs of the GPU of any number, since the watch began",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           absent_when=(_NOBODY,)),
    Metric(id=462, name=XID_LAST, kind=MetricKind.GAUGE, type=ValueType.INT, low=0,
           help="Number of the newest XID of the GPU; it does not end, look at its time",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           dcgm=(230,),
           absent_when=(_NONE_YET, _NOBODY)),
    Metric(id=463, name=XID_LAST_AT, kind=MetricKind.GAUGE, type=ValueType.FLOAT, unit="seconds", low=0,
           help="When the newest XID of the GPU happened, since 1970",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           absent_when=(_NONE_YET, _NOBODY)),
    Metric(id=464, name=XID_SINCE, kind=MetricKind.GAUGE, type=ValueType.FLOAT, unit="seconds", low=0,
           help="Since when XIDs of the GPU are counted, since 1970; it survives restarts of the agent, not of the "
                "machine",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           absent_when=(_NOBODY,)),
    Metric(id=465, name=DRIVER_EVENTS, kind=MetricKind.GAUGE, type=ValueType.INT, low=0, high=1,
           help="1 if the driver tells this agent of XIDs as they happen, else 0",
           subjects=_GPU, lane=Lane.SLOW, storage=Storage.TAIL, nvml=("nvmlDeviceRegisterEvents",), dcgm=(230,)),
    Metric(id=466, name=LOG_LOST, kind=MetricKind.COUNTER, type=ValueType.INT, low=0,
           help="Messages of the kernel that were overwritten before this agent read them",
           subjects=(Subject.MACHINE,), lane=Lane.SLOW, storage=Storage.TAIL, kernel=("/dev/kmsg",),
           absent_when=(Absence(Reason.NOT_PERMITTED, "the kernel's log may not be read"),
                        Absence(Reason.NOT_SUPPORTED, "a container without /dev/kmsg"))),
    Metric(id=467, name=RELEASED, kind=MetricKind.GAUGE, type=ValueType.INT, low=0, high=1,
           help="1 while an operator has made the agent let go of the GPUs, else 0",
           subjects=(Subject.MACHINE,), lane=Lane.EVENT, storage=Storage.TAIL,
           kernel=("the agent's state folder",)),
)
# fmt: on
