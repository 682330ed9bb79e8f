"""Rows of the catalogue about MIG devices, vGPU instances and their GPUs. Ids 400 to 459.

Identity of an instance (profile, instance ids, virtual machine) is on the fast lane: instances come and go between
slow passes, and a value belongs to the holder of the instance at the time of measurement.
"""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Absence, GpuRole
from gpufleet.model.catalogue.row import (
    DIM,
    ENUM,
    FAST,
    FLOAT,
    GAUGE,
    GPU_VGPU,
    GUEST,
    INT,
    MIG,
    OLD_CHIP,
    OLD_DRIVER,
    SLOW,
    STATE,
    TAIL,
    VGPU,
    info,
    row,
)

ADMIN_ONLY = Absence(Reason.NOT_PERMITTED, "the driver reports it to MIG administrators only")
NO_VGPU = Absence(Reason.NOT_SUPPORTED, "no vGPU is active, or the chip does not support it")
NO_EXPIRY = Absence(Reason.NO_DATA, "not licensed, or the licence does not expire")
NO_GUEST_DRIVER = Absence(Reason.NO_DATA, "no driver has come up in the guest yet")
NOT_MIG_BACKED = Absence(Reason.NOT_SUPPORTED, "the instance is not backed by MIG")
NO_ACCOUNTING = Absence(Reason.NO_DATA, "accounting is off for this instance")

SCHEDULER_POLICIES = ("unknown", "best_effort", "equal_share", "fixed_share")
"""NVML_VGPU_SCHEDULER_POLICY_*; `unknown` is a value of the driver."""

ARR_MODES = ("default", "disabled", "enabled", "unknown")
"""NVML_VGPU_SCHEDULER_ARR_* (adaptive round robin); a number without a name here is `unknown`."""

LICENSE_STATES = (
    "unknown",
    "uninitialized",
    "unlicensed_unrestricted",
    "unlicensed_restricted",
    "unlicensed",
    "licensed",
)
"""NVML_GRID_LICENSE_STATE_*."""

VGPU_CAPABILITIES = (
    ("fractional_multi_vgpu", 0),
    ("heterogeneous_timeslice_profiles", 1),
    ("heterogeneous_timeslice_sizes", 2),
    ("migration_streaming", 5),
    ("mini_quarter_gpu", 6),
    ("compute_media_engine", 7),
    ("warm_update", 8),
    ("homogeneous_placements", 9),
    ("mig_timeslicing_supported", 10),
    ("mig_timeslicing_enabled", 11),
)
"""Names and numbers of NVML_DEVICE_VGPU_CAP_*; 3 and 4 are bandwidths, not capabilities."""


# fmt: off
INSTANCE_METRICS = (
    # GPUs in MIG mode
    row(400, "gpu_mig_mode_pending", STATE, ENUM, "", "MIG mode after the next reset",
        low=None, lane=SLOW, storage=TAIL, states=("disabled", "enabled"), nvml=("nvmlDeviceGetMigMode",),
        smi=("mig.mode.pending",), absent=(OLD_CHIP, GUEST)),
    row(401, "gpu_mig_devices", GAUGE, INT, "", "Current MIG devices of the GPU",
        storage=TAIL, nvml=("nvmlDeviceGetMigDeviceHandleByIndex",), role=GpuRole.MIG_PARENT),
    row(402, "gpu_mig_devices_max", GAUGE, INT, "", "Maximum number of MIG devices of the GPU",
        lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetMaxMigDeviceCount",), role=GpuRole.MIG_PARENT),
    # MIG devices
    info(405, "mig_profile", "Profile of the MIG device, as `nvidia-smi -L` writes it", lane=FAST, subjects=MIG,
         nvml="nvmlDeviceGetName"),
    info(406, "mig_gpu_instance", "Id of the GPU instance on its GPU; reused when instances are recreated",
         lane=FAST, subjects=MIG, nvml="nvmlDeviceGetGpuInstanceId"),
    info(407, "mig_compute_instance", "Id of the compute instance in its GPU instance",
         lane=FAST, subjects=MIG, nvml="nvmlDeviceGetComputeInstanceId"),
    row(408, "mig_multiprocessors", GAUGE, INT, "", "Streaming multiprocessors of the MIG device",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.multiprocessorCount",)),
    row(409, "mig_gpu_slices", GAUGE, INT, "", "GPU slices of its GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.gpuInstanceSliceCount",)),
    row(410, "mig_compute_slices", GAUGE, INT, "", "Compute slices of its compute instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.computeInstanceSliceCount",)),
    row(411, "mig_copy_engines", GAUGE, INT, "", "Copy engines, shared within the GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.sharedCopyEngineCount",)),
    row(412, "mig_decoders", GAUGE, INT, "", "Video decoders, shared within the GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.sharedDecoderCount",)),
    row(413, "mig_encoders", GAUGE, INT, "", "Video encoders, shared within the GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.sharedEncoderCount",)),
    row(414, "mig_jpeg_engines", GAUGE, INT, "", "JPEG engines, shared within the GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.sharedJpegCount",)),
    row(415, "mig_ofa_engines", GAUGE, INT, "", "Optical flow accelerators, shared within the GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlDeviceGetAttributes_v2.sharedOfaCount",)),
    row(416, "mig_placement_start", GAUGE, INT, "", "First memory slice of the GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlGpuInstanceGetInfo.placement.start",),
        absent=(ADMIN_ONLY,)),
    row(417, "mig_placement_size", GAUGE, INT, "", "Memory slices of the GPU instance",
        lane=SLOW, storage=TAIL, subjects=MIG, nvml=("nvmlGpuInstanceGetInfo.placement.size",),
        absent=(ADMIN_ONLY,)),
    # hosts of vGPUs
    row(420, "gpu_vgpu_instances", GAUGE, INT, "", "Active vGPU instances",
        storage=TAIL, nvml=("nvmlDeviceGetActiveVgpus",), role=GpuRole.VGPU_HOST),
    row(421, "gpu_vgpu_host_mode", STATE, ENUM, "", "Host mode of vGPUs",
        low=None, lane=SLOW, storage=TAIL, states=("non_sriov", "sriov"), nvml=("nvmlDeviceGetHostVgpuMode",),
        role=GpuRole.VGPU_HOST),
    row(422, "gpu_vgpu_scheduler_policy", STATE, ENUM, "",
        "Policy of time sharing between vGPUs; `unknown` is a value of the driver",
        low=None, lane=SLOW, storage=TAIL, states=SCHEDULER_POLICIES,
        nvml=("nvmlDeviceGetVgpuSchedulerState.schedulerPolicy",), absent=(NO_VGPU,), role=GpuRole.VGPU_HOST),
    row(423, "gpu_vgpu_scheduler_arr_mode", STATE, ENUM, "", "Adaptive round robin between vGPUs",
        low=None, lane=SLOW, storage=TAIL, states=ARR_MODES, nvml=("nvmlDeviceGetVgpuSchedulerState.arrMode",),
        absent=(NO_VGPU,), role=GpuRole.VGPU_HOST),
    row(424, "gpu_vgpu_scheduler_arr_supported", GAUGE, INT, "", "1 if adaptive round robin is supported, else 0",
        high=1, lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetVgpuSchedulerCapabilities.isArrModeSupported",),
        absent=(NO_VGPU,), role=GpuRole.VGPU_HOST),
    row(425, "gpu_vgpu_scheduler_time_slice_seconds", GAUGE, FLOAT, "seconds",
        "Time slice of a vGPU",
        high=10, lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetVgpuSchedulerState.schedulerParams",),
        absent=(NO_VGPU,), role=GpuRole.VGPU_HOST),
    row(426, "gpu_vgpu_heterogeneous_mode", STATE, ENUM, "", "Whether vGPUs of different sizes can share the GPU",
        low=None, lane=SLOW, storage=TAIL, states=("disabled", "enabled"),
        nvml=("nvmlDeviceGetVgpuHeterogeneousMode",), absent=(OLD_CHIP, OLD_DRIVER), role=GpuRole.VGPU_HOST),
    row(427, "gpu_vgpu_capability", GAUGE, INT, "", "1 if the GPU has this vGPU capability, else 0",
        high=1, lane=SLOW, storage=DIM, dims=("capability",), nvml=("nvmlDeviceGetVgpuCapabilities",),
        absent=(OLD_DRIVER,), role=GpuRole.VGPU_HOST),
    # vGPU instances
    info(430, "vgpu_type", "vGPU type of the instance", lane=FAST, subjects=VGPU, nvml="nvmlVgpuTypeGetName"),
    info(431, "vgpu_vm_id", "Virtual machine of the instance: its UUID in lower case, or the hypervisor's id",
         lane=FAST, subjects=VGPU, nvml="nvmlVgpuInstanceGetVmID"),
    info(432, "vgpu_vm_id_kind", "Kind of `vgpu_vm_id`: `uuid` or `domain_id`", lane=FAST, subjects=VGPU,
         nvml="nvmlVgpuInstanceGetVmID"),
    info(433, "vgpu_class", "Class of the vGPU type, such as Compute or Quadro", lane=SLOW, subjects=VGPU,
         nvml="nvmlVgpuTypeGetClass"),
    info(434, "vgpu_type_license", "Licences supported by the vGPU type", lane=SLOW, subjects=VGPU,
         nvml="nvmlVgpuTypeGetLicense"),
    info(435, "vgpu_guest_driver_version", "Version of the driver in the guest", lane=SLOW, subjects=VGPU,
         nvml="nvmlVgpuInstanceGetVmDriverVersion", absent=(NO_GUEST_DRIVER,)),
    info(436, "vgpu_gpu_instance", "Id of the MIG GPU instance behind the vGPU", lane=SLOW, subjects=VGPU,
         nvml="nvmlVgpuInstanceGetGpuInstanceId", absent=(NOT_MIG_BACKED,)),
    info(437, "vgpu_mdev_uuid", "UUID of the mediated device behind the vGPU", lane=SLOW, subjects=VGPU,
         nvml="nvmlVgpuInstanceGetMdevUUID",
         absent=(Absence(Reason.NOT_SUPPORTED, "the host uses virtual functions, not mediated devices"),)),
    row(438, "vgpu_ecc_mode", STATE, ENUM, "", "Whether memory ECC is on for the instance",
        low=None, lane=SLOW, storage=TAIL, subjects=VGPU, states=("disabled", "enabled"),
        nvml=("nvmlVgpuInstanceGetEccMode",)),
    row(439, "vgpu_frame_rate_limit_hertz", GAUGE, INT, "hertz", "Frame rate limit of the instance",
        lane=SLOW, storage=TAIL, subjects=VGPU, nvml=("nvmlVgpuInstanceGetFrameRateLimit",)),
    row(440, "vgpu_placement_id", GAUGE, INT, "", "Placement of the instance's framebuffer on its GPU",
        lane=SLOW, storage=TAIL, subjects=VGPU, nvml=("nvmlVgpuInstanceGetPlacementId",),
        absent=(OLD_DRIVER, Absence(Reason.NOT_SUPPORTED, "the GPU is not in heterogeneous mode"))),
    row(441, "vgpu_accounting_mode", STATE, ENUM, "", "Whether accounting of the guest's processes is on",
        low=None, lane=SLOW, storage=TAIL, subjects=VGPU, states=("disabled", "enabled"),
        nvml=("nvmlVgpuInstanceGetAccountingMode",)),
    row(442, "vgpu_accounting_processes", GAUGE, INT, "", "Running processes in the guest according to accounting",
        lane=SLOW, storage=TAIL, subjects=VGPU, nvml=("nvmlVgpuInstanceGetAccountingStats.isRunning",),
        absent=(NO_ACCOUNTING,)),
    row(443, "vgpu_accounting_utilization_ratio", GAUGE, FLOAT, "ratio",
        "Sum, over the guest's running processes, of the share of its lifetime in which each ran kernels: an average "
        "of the past, not the current load",
        high=10_000, lane=SLOW, storage=TAIL, subjects=VGPU,
        nvml=("nvmlVgpuInstanceGetAccountingStats.gpuUtilization",), absent=(NO_ACCOUNTING,)),
    row(444, "vgpu_active", GAUGE, INT, "", "1 if a process runs in the guest according to accounting, else 0",
        high=1, lane=SLOW, storage=TAIL, subjects=VGPU, nvml=("nvmlVgpuInstanceGetAccountingStats.isRunning",),
        absent=(NO_ACCOUNTING,)),
    # licences: of an instance seen from the host, and of a GPU inside a guest
    row(445, "vgpu_license_state", STATE, ENUM, "",
        "Whether the guest has its vGPU licence; without a licence its performance degrades after some time",
        low=None, lane=SLOW, storage=TAIL, subjects=GPU_VGPU, states=LICENSE_STATES,
        nvml=("nvmlVgpuInstanceGetLicenseInfo_v2", "nvmlDeviceGetGridLicensableFeatures_v4"), dcgm=(526,),
        role=GpuRole.VGPU_GUEST),
    row(446, "vgpu_license_expiry_timestamp_seconds", GAUGE, INT, "seconds", "Expiry of the licence, since 1970",
        lane=SLOW, storage=TAIL, subjects=GPU_VGPU,
        nvml=("nvmlVgpuInstanceGetLicenseInfo_v2", "nvmlDeviceGetGridLicensableFeatures_v4"), absent=(NO_EXPIRY,),
        role=GpuRole.VGPU_GUEST),
    info(447, "vgpu_license_product", "Product of the guest's licence", lane=SLOW,
         nvml="nvmlDeviceGetGridLicensableFeatures_v4", role=GpuRole.VGPU_GUEST),
)
# fmt: on
