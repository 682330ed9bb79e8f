"""Source modules and their tests: each module has a test module of its name, or is listed here with its tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpufleet"
TESTS = ROOT / "tests"

THROUGH_THE_PACKAGE = {
    "agent/collect": ("release single_pass state", "tests/agent/collect"),
    "agent/guests": ("guest", "tests/agent/guests"),
    "channels": ("output", "tests/channels"),
    "channels/qemu_agent": ("protocol", "tests/channels/qemu_agent"),
    "channels/ssh": ("login target", "tests/channels/ssh"),
    "channels/stream": ("dialers sockets", "tests/channels/stream"),
    "cli": (
        (
            "accounts agent agent_daemon app audit cluster cluster_agent cluster_agent_daemon config devices doctor "
            "doctor_page explain hub hub_daemon live machine options release rules simulate_fleet source "
            "startup version"
        ),
        "tests/cli",
    ),
    "cluster": ("reporter", "tests/cluster/test_collector.py"),
    "codecs/batch": ("codec columns compression limits records rows size structure", "tests/codecs/batch"),
    "codecs": ("xml_parser", "tests/codecs"),
    "codecs/dcgm_wire": ("codes commands frame requests values", "tests/codecs/dcgm_wire"),
    "codecs/nvidia_smi": ("capture failure listing records", "tests/codecs/nvidia_smi"),
    "codecs/otlp": ("decode encode encodings messages records", "tests/codecs/otlp"),
    "codecs/prometheus_text": ("labels page", "tests/codecs/prometheus_text"),
    "codecs/remote_write": ("encode records series_cache", "tests/codecs/remote_write"),
    "config": ("guests holders scrape secret_files tls urls", "tests/config"),
    "dashboards": ("dcgm grafana native panel", "tests/dashboards/test_dashboards.py"),
    "decoding": ("batch builder format prometheus recordings snapshot", "tests/decoding/test_formats.py"),
    "delivery": ("outbox post", "tests/delivery"),
    "dialects": (
        (
            "dcgm_exporter dialect kube_state_metrics kubevirt l9gpu_points native "
            "nvidia_gpu_exporter nvitop_exporter otel_names otel_reading reading registry"
        ),
        "tests/dialects",
    ),
    "doctor": ("access facts", "tests/doctor"),
    "doctor/hub": ("checks facts files gather", "tests/doctor/test_hub_checks.py"),
    "exporters": (
        (
            "agent_page all_smi clock_counts cluster_page csv display exposition families json kubevirt native "
            "nvidia_gpu_exporter otlp_dialects otlp_logs otlp_resource reference subjects table"
        ),
        "tests/exporters",
    ),
    "fleet": ("proc_files", "tests/readers/host/test_reader.py"),
    "fleet/attribution": ("passthrough", "tests/web/hub/test_passthrough.py"),
    "fleet/facts": ("conditions devices machines memory metrics supplied", "tests/fleet/facts"),
    "holders/kubernetes": ("identity", "tests/holders/kubernetes/test_contract.py"),
    "holders/libvirt": ("mapping", "tests/holders/libvirt"),
    "holders/processes": ("descriptors files placement records vfio", "tests/holders/processes"),
    "holders/slurm": ("fetch records", "tests/holders/slurm"),
    "hub/contract": ("cluster_facts machine_facts", "tests/hub/contract"),
    "hub/findings": ("failures gatherer states status", "tests/hub/findings"),
    "hub/flush": ("quarantine", "tests/hub/flush"),
    "hub/imports": ("receiver request scrape_status", "tests/hub/imports"),
    "hub/liveness": ("states", "tests/hub/liveness"),
    "hub/notify": ("receiver responses stats", "tests/hub/notify"),
    "hub/query": (
        (
            "allocations fleet holder_usage holders inventory machine_series paging probe_changes processes usage "
            "workloads"
        ),
        "tests/hub/query",
    ),
    "hub/receive": ("clusters counters log", "tests/hub/receive"),
    "hub/relay": ("forwarding senders", "tests/relay"),
    "model": (
        (
            "access allocation cluster collector contract declarations errors event finding holdings kubernetes "
            "liveness machine process reading snapshot status time"
        ),
        "tests/model",
    ),
    "model/api": (
        "answer benchmarks findings fleet holders inventory kubernetes probe senders sql usage",
        "tests/web/hub",
    ),
    "model/stored": ("findings holdings kubernetes ledger readings retention samples", "tests/stores/clickhouse"),
    "model/wire": ("batch matrix", "tests/codecs/batch"),
    "probe": ("facts host_files measurements records", "tests/probe"),
    "readers/dcgm": ("client session", "tests/readers/dcgm"),
    "readers/dcgm/mapping": ("activity device mig row units", "tests/readers/dcgm"),
    "readers/exporter": ("fetch freeze_detector mapping trust", "tests/readers/exporter"),
    "readers/host": ("fetch plan source", "tests/readers/host"),
    "readers/host/mapping": ("devices identity kernel network", "tests/readers/host"),
    "readers/kmsg": ("fetch mapping", "tests/readers/kmsg"),
    "readers/netdata": ("fetch mapping parse", "tests/readers/netdata"),
    "readers/nvidia_smi": ("fetch parse plan views", "tests/readers/nvidia_smi"),
    "readers/nvidia_smi/mapping": ("account processes rows tables unread_fields values", "tests/readers/nvidia_smi"),
    "readers/nvml/calls": ("activity board call errors fields links mig vgpu", "tests/readers/nvml"),
    "readers/nvml": (
        "context fetch instances listeners machine parse protocol reader watch worker",
        "tests/readers/nvml",
    ),
    "readers/nvml/mapping": ("activity errors lane mig row units vgpu", "tests/readers/nvml"),
    "readers/snapshot": ("fetch mapping", "tests/readers/snapshot"),
    "recording": ("dictionary format index", "tests/recording"),
    "registry": ("allocations audit conflicts machine_rows tables", "tests/registry"),
    "": ("runtime", "tests/runtime"),
    "rules": ("devices faults gaps promql reference rollups rule selection", "tests/rules"),
    "simulate/dcgm": ("answers engine state values", "tests/readers/dcgm"),
    "simulate/fleet": ("agents cycles fleet hardware layout posting random_values reports", "tests/simulate/fleet"),
    "spool": ("acknowledgements folder record recovery segment segment_list", "tests/spool"),
    "stores/clickhouse/facts": ("mig", "tests/stores/clickhouse/facts/test_newest_columns.py"),
    "stores/clickhouse/connection": ("lease", "tests/stores/clickhouse/connection"),
    "stores/clickhouse/machines": ("status summaries", "tests/stores/clickhouse/machines"),
    "stores/clickhouse/rollup": ("durations hours job output rows tables", "tests/stores/clickhouse/rollup"),
    "stores/clickhouse/samples": ("cluster_samples keys newest_rows pages", "tests/stores/clickhouse/samples"),
    "stores/clickhouse/schema": ("arrow columns tables", "tests/stores/clickhouse/schema"),
    "stores/clickhouse/sql": ("definition queries views windows", "tests/stores/clickhouse/sql"),
    "top": ("columns history host lines observation", "tests/top"),
    "web/hub": (
        (
            "access allocations app audit errors events http imports ingest openapi parameters relay "
            "remote_write selfmetrics tables"
        ),
        "tests/web/hub",
    ),
    "web": ("cluster_app operator_app protocol server tls", "tests/web"),
    "wiring": (
        "connections delivery exports forward hub_parts polling relay running simulated_exports snapshot",
        "tests/wiring",
    ),
}
"""Package to its modules without a test module of their name, and where the package's public names test them."""

UNTESTED = {
    "ports": (
        "channel clock cluster exporter findings guests holder hypervisor reader registry store vsock",
        "Protocols: no behaviour of their own",
    ),
}
"""Package to its modules without tests, and the reason."""


def _modules() -> set[str]:
    return {
        path.relative_to(SOURCE).with_suffix("").as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name not in ("__init__.py", "_version.py")
    }


def _has_own_test(module: str) -> bool:
    """Return whether a test module has the name of the module, or of a package around it, at the same place."""
    parts = module.split("/")
    return any(TESTS.joinpath(*parts[: n - 1], f"test_{parts[n - 1]}.py").exists() for n in range(1, len(parts) + 1))


def _listed() -> set[str]:
    listed = {**THROUGH_THE_PACKAGE, **UNTESTED}
    return {f"{package}/{name}".lstrip("/") for package, (names, _) in listed.items() for name in names.split()}


def test_each_module_has_a_test_module_or_is_listed() -> None:
    without = {module for module in _modules() if not _has_own_test(module)}
    assert without - _listed() == set(), "add a test module of the same name, or list the module with its tests"
    assert _listed() - without == set(), "no longer there, or tested by name: remove the entry"


def test_listed_tests_exist() -> None:
    assert [place for _, place in THROUGH_THE_PACKAGE.values() if not (ROOT / place).exists()] == []
