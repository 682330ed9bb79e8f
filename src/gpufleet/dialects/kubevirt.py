"""Dialect of KubeVirt's proposal for GPUs of virtual machines, `kubevirt_vmi_gpu_*` (enhancement 254; unreleased).

Names, units and labels are from the proposal and its code. All families are gauges, whatever the suffix, in percent and
milliwatts. A series is about a GPU seen from its guest; `name` and `namespace` are those of the virtual machine.

The code of the proposal sends every family of every device as a plain number: what a guest cannot read, such as the
temperature of a vGPU, is 0.
"""

from gpufleet.dialects.dialect import Dialect, FamilyMapping, SeriesSubject, small_number, table, text_of
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Subject
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.view import Side, View, ViewKind

PREFIX = "kubevirt_vmi_gpu_"


def _row(name: str, metric: str, *, over: int = 1, zero: Reason | None = None) -> FamilyMapping:
    return FamilyMapping(name=PREFIX + name, metric=metric, of=(Subject.GPU,), over=over, zero=zero)


FAMILIES = table(
    _row("utilization_percent", "gpu_utilization_ratio", over=100),
    _row("memory_utilization_percent", "gpu_memory_activity_ratio", over=100),
    _row("memory_used_bytes", "gpu_memory_used_bytes"),
    _row("memory_total_bytes", "gpu_memory_total_bytes", zero=Reason.NO_DATA),
    _row("temperature_celsius", "gpu_temperature_celsius", zero=Reason.NO_DATA),
    _row("power_usage_milliwatts", "gpu_power_watts", over=1000, zero=Reason.NO_DATA),
    _row("ecc_errors_single_bit_total", "gpu_ecc_corrected_lifetime_errors_total"),
    _row("ecc_errors_double_bit_total", "gpu_ecc_uncorrected_lifetime_errors_total"),
    _row("encoder_utilization_percent", "gpu_encoder_utilization_ratio", over=100),
    _row("decoder_utilization_percent", "gpu_decoder_utilization_ratio", over=100),
    _row("running_processes", "gpu_compute_processes"),
)

UNREAD = {
    PREFIX + "info": "holders of devices from the device plugin: attribution, not a measurement",
    PREFIX + "agent_status": "status of the collector itself",
}


def identify(series: ImportedSeries) -> SeriesSubject | None:
    """Return the subject of a series: a GPU in a virtual machine `namespace/name`."""
    labels = series.labels
    uuid, name = text_of(labels, "gpu_uuid"), labels.get("name", "")
    if not uuid or not name:
        return None
    namespace = labels.get("namespace", "")
    view = View(kind=ViewKind.GPU, side=Side.GUEST, uuid=uuid, index=small_number(labels.get("gpu_index", "")))
    return SeriesSubject(
        machine=f"{namespace}/{name}" if namespace else name, view=view, name=text_of(labels, "gpu_name"), guest=True
    )


KUBEVIRT = Dialect(
    name="kubevirt",
    prefixes=(PREFIX,),
    families=FAMILIES,
    unread=UNREAD,
    identify=identify,
    labels=frozenset({"name", "gpu_index", "gpu_uuid", "gpu_name"}),
)
