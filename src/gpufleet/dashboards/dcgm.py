"""Dashboard for dcgm-exporter metric names; works with dcgm-exporter and with the agent's dcgm dialect."""

from gpufleet.dashboards.panel import Dashboard, DashboardRow, DashboardVariable, Panel, PanelQuery, PanelType
from gpufleet.dialects.dcgm_exporter import FAMILIES, PRESENT
from gpufleet.fleet.board import NOT_OF_MIG, PART_OF_USE
from gpufleet.model.products import PRODUCTS_WITHOUT, RARELY_LACKED

GPUS = 'Hostname=~"$node",gpu=~"$gpu"'
LEGEND = "{{Hostname}} GPU {{gpu}} {{GPU_I_ID}}"
GPU_LABELS = "Hostname, gpu, UUID"
"""Labels of a GPU. GPUs of two virtual machines of a node can have one index."""

WHOLE = 'GPU_I_ID="",vgpu=""'
"""Matchers of series that are not about a part of a GPU in MIG mode or about the share of a pod."""

_ANY = f'__name__=~"{"|".join(PRESENT)}"'

_PANELS = (
    # title, family, expression, unit, maximum
    ("Utilization", "DCGM_FI_DEV_GPU_UTIL", "{}", "percent", 100.0),
    ("Framebuffer used", "DCGM_FI_DEV_FB_USED", "{} * 1048576", "bytes", None),
    ("Temperature", "DCGM_FI_DEV_GPU_TEMP", "{}", "celsius", None),
    ("Power", "DCGM_FI_DEV_POWER_USAGE", "{}", "watt", None),
    ("Newest XID", "DCGM_FI_DEV_XID_ERRORS", "{}", "none", None),
    ("Memory temperature", "DCGM_FI_DEV_MEMORY_TEMP", "{}", "celsius", None),
    ("Framebuffer free", "DCGM_FI_DEV_FB_FREE", "{} * 1048576", "bytes", None),
    ("SM clock", "DCGM_FI_DEV_SM_CLOCK", "{} * 1000000", "hertz", None),
    ("Memory clock", "DCGM_FI_DEV_MEM_CLOCK", "{} * 1000000", "hertz", None),
    ("Graphics engine active", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "{}", "percentunit", 1.0),
    ("Tensor cores active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "{}", "percentunit", 1.0),
    ("DRAM active", "DCGM_FI_PROF_DRAM_ACTIVE", "{}", "percentunit", 1.0),
    ("Memory copy utilization", "DCGM_FI_DEV_MEM_COPY_UTIL", "{}", "percent", 100.0),
    ("Encoder", "DCGM_FI_DEV_ENC_UTIL", "{}", "percent", 100.0),
    ("Decoder", "DCGM_FI_DEV_DEC_UTIL", "{}", "percent", 100.0),
    ("PCIe sent", "DCGM_FI_PROF_PCIE_TX_BYTES", "{}", "Bps", None),
    ("PCIe received", "DCGM_FI_PROF_PCIE_RX_BYTES", "{}", "Bps", None),
    ("Power by energy", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "rate({}[$__rate_interval]) / 1000", "watt", None),
    ("PCIe replays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "rate({}[$__rate_interval])", "cps", None),
    ("Rows remapped, uncorrectable", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "{}", "none", None),
)


def dcgm_dashboard() -> Dashboard:
    """Return the dashboard."""
    panels = tuple(
        Panel(
            title=title,
            help=family,
            unit=unit,
            queries=(PanelQuery(template.format(_measured(family)), LEGEND),),
            low=0 if high else None,
            high=high,
        )
        for title, family, template, unit, high in _PANELS
    )
    return Dashboard(
        uid="gpufleet-dcgm",
        title="GPUs (dcgm-exporter metrics)",
        help="For dcgm-exporter up to 4.8, and gpufleet agent --dialect dcgm.",
        variables=(
            DashboardVariable(name="node", label="Node", query=f"label_values({{{_ANY}}}, Hostname)"),
            DashboardVariable(name="gpu", label="GPU", query=f'label_values({{{_ANY},Hostname=~"$node"}}, gpu)'),
        ),
        rows=(
            DashboardRow(
                title="",
                collapsed=False,
                panels=(
                    _stat("GPUs", f"count({_per_gpu(f'{{{_ANY},{GPUS}}}')})", "none"),
                    _stat("Power", f"sum({_per_gpu(f'DCGM_FI_DEV_POWER_USAGE{{{GPUS}}}')})", "watt"),
                    _stat("Hottest", f"max(DCGM_FI_DEV_GPU_TEMP{{{GPUS}}})", "celsius"),
                    _stat("Utilization", f"avg({_per_gpu(f'DCGM_FI_DEV_GPU_UTIL{{{GPUS},{WHOLE}}}')})", "percent"),
                    *panels,
                ),
            ),
        ),
    )


def _measured(family: str) -> str:
    """Return the query for a family, without zeros that are no measurement."""
    series = f"{family}{{{GPUS}}}"
    mapping = FAMILIES[family]
    part, zeros = PART_OF_USE.get(mapping.metric), []
    if mapping.metric in NOT_OF_MIG:
        zeros.append('GPU_I_ID=""')
    if part is not None:
        unnamed = "" if part in RARELY_LACKED else "|"
        zeros.append(f"modelName!~`{unnamed}.*(?:{PRODUCTS_WITHOUT[part].pattern}).*`")
    if zeros:
        return f"({series} != 0 or {family}{{{','.join((GPUS, *zeros))}}})"
    return series if mapping.zero is None else f"({series} != 0)"


def _per_gpu(series: str) -> str:
    """Return the query with one value for each GPU: MIG devices and pods that share a GPU repeat its readings."""
    return f"max by ({GPU_LABELS}) ({series})"


def _stat(title: str, expression: str, unit: str) -> Panel:
    return Panel(
        title=title, help="Over all selected GPUs", unit=unit, queries=(PanelQuery(expression, title),),
        type=PanelType.STAT, width=6, height=4,
    )  # fmt: skip
