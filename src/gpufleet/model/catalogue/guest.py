"""Rows of the catalogue about virtual machines that an agent reads from inside. Ids 380 to 399."""

from gpufleet.model.catalogue.metric import Lane, Metric, MetricKind, Storage, Subject, ValueType
from gpufleet.model.machine import STATES


def _row(
    id: int,  # noqa: A002 - the column's own name
    name: str,
    kind: MetricKind,
    type: ValueType,  # noqa: A002 - the column's own name
    help: str,  # noqa: A002 - the column's own name
    *,
    unit: str = "",
    states: tuple[str, ...] = (),
) -> Metric:
    return Metric(
        id=id,
        name=name,
        kind=kind,
        type=type,
        unit=unit,
        low=None if type in (ValueType.ENUM, ValueType.TEXT) else 0,
        help=help,
        subjects=(Subject.MACHINE,),
        sides=("host",),
        lane=Lane.FAST,
        storage=Storage.INFO if kind is MetricKind.INFO else Storage.TAIL,
        states=states,
        kernel=("gpufleet agent",),
    )


def _text(id: int, name: str, help: str) -> Metric:  # noqa: A002
    return _row(id, name, MetricKind.INFO, ValueType.TEXT, help)


def _instant(id: int, name: str, help: str) -> Metric:  # noqa: A002
    return _row(id, name, MetricKind.GAUGE, ValueType.FLOAT, help, unit="seconds")


# fmt: off
GUEST_METRICS = (
    _row(380, "guest_state", MetricKind.STATE, ValueType.ENUM, "State of access to the virtual machine",
         states=STATES),
    _text(381, "guest_problem", "Original message of the problem; empty without a problem"),
    _text(382, "guest_access_path", "Access path over which its GPUs are read: reader and channel"),
    _text(383, "guest_allocation", "Id of its allocation, from the agent's targets"),
    _row(384, "guest_gpus", MetricKind.GAUGE, ValueType.INT, "GPUs visible in the guest"),
    _row(385, "guest_expected_gpus", MetricKind.GAUGE, ValueType.INT, "Expected GPUs of the guest"),
    _instant(386, "guest_seen_timestamp_seconds", "Time of its discovery by the agent, since 1970"),
    _instant(387, "guest_channel_open_timestamp_seconds", "Time when an access path was first open, since 1970"),
    _instant(388, "guest_first_answer_timestamp_seconds", "Time of the first answer from inside, since 1970"),
    _instant(389, "guest_driver_ready_timestamp_seconds", "Time of the first GPU reading, since 1970"),
    _row(390, "guest_hugepages", MetricKind.GAUGE, ValueType.INT,
         "1 if the memory of the virtual machine is of reserved huge pages of its host, by its definition, else 0"),
    _instant(391, "guest_state_timestamp_seconds",
             "Start of the pass that state, problem and GPUs are from, or time of a report without a pass, since 1970"),
)
# fmt: on
