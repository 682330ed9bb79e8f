"""Rows of the catalogue about events: XID counts and the state of the watch. Ids 460 to 479."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Absence, Lane, Metric, MetricKind, Storage, Subject, ValueType
from gpufleet.model.xid import LAST_NUMBER

XID_ERRORS = "gpu_xid_errors_total"
XID_ALL = "gpu_xid_events_total"
XID_LAST = "gpu_last_xid"
XID_LAST_AT = "gpu_last_xid_timestamp_seconds"
XID_SINCE = "gpu_xid_watched_since_timestamp_seconds"
DRIVER_EVENTS = "gpu_driver_events_watched"
LOG_LOST = "host_kernel_log_lost_messages_total"
RELEASED = "host_gpus_released"

_GPU = (Subject.GPU,)
_NOT_WATCHED = Absence(Reason.NOT_COLLECTED, "neither the kernel log nor driver events can be watched")
_NONE_YET = Absence(Reason.NO_DATA, "no XID since the watch began")

# fmt: off
EVENT_METRICS = (
    Metric(id=460, name=XID_ERRORS, kind=MetricKind.COUNTER, type=ValueType.INT, low=0, dims=("xid",),
           help="XIDs of the GPU by number, since the watch began; a number without occurrence has no series",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.DIM, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",)),
    Metric(id=461, name=XID_ALL, kind=MetricKind.COUNTER, type=ValueType.INT, low=0,
           help="XIDs of the GPU of any number, since the watch began",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           absent_when=(_NOT_WATCHED,)),
    Metric(id=462, name=XID_LAST, kind=MetricKind.GAUGE, type=ValueType.INT, low=0, high=LAST_NUMBER,
           help="Newest XID of the GPU; it does not reset, see its timestamp",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           dcgm=(230,),
           absent_when=(_NONE_YET, _NOT_WATCHED)),
    Metric(id=463, name=XID_LAST_AT, kind=MetricKind.GAUGE, type=ValueType.FLOAT, unit="seconds", low=0,
           help="Time of the newest XID of the GPU, since 1970",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           absent_when=(_NONE_YET, _NOT_WATCHED)),
    Metric(id=464, name=XID_SINCE, kind=MetricKind.GAUGE, type=ValueType.FLOAT, unit="seconds", low=0,
           help="Start of the XID count of the GPU, since 1970; it survives restarts of the agent, but not of the "
                "machine",
           subjects=_GPU, lane=Lane.EVENT, storage=Storage.TAIL, kernel=("/dev/kmsg",), nvml=("nvmlEventSetWait_v2",),
           absent_when=(_NOT_WATCHED,)),
    Metric(id=465, name=DRIVER_EVENTS, kind=MetricKind.GAUGE, type=ValueType.INT, low=0, high=1,
           help="1 if this agent receives XID events from the driver, else 0",
           subjects=_GPU, lane=Lane.SLOW, storage=Storage.TAIL, nvml=("nvmlDeviceRegisterEvents",), dcgm=(230,)),
    Metric(id=466, name=LOG_LOST, kind=MetricKind.COUNTER, type=ValueType.INT, low=0,
           help="Kernel log messages overwritten before this agent read them",
           subjects=(Subject.MACHINE,), lane=Lane.SLOW, storage=Storage.TAIL, kernel=("/dev/kmsg",),
           absent_when=(Absence(Reason.NOT_PERMITTED, "the kernel log may not be read"),
                        Absence(Reason.NOT_SUPPORTED, "a container without /dev/kmsg"))),
    Metric(id=467, name=RELEASED, kind=MetricKind.GAUGE, type=ValueType.INT, low=0, high=1,
           help="1 while the agent has released the GPUs on request of an operator, else 0",
           subjects=(Subject.MACHINE,), lane=Lane.EVENT, storage=Storage.TAIL,
           kernel=("the agent's state folder",)),
)
# fmt: on
