"""Files of `deploy/` that are rendered: rules in the Helm chart, and plain manifests from the chart.

python -m tools.manifests HELM
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpufleet.rules.render import RulesFormat, render_rules
from gpufleet.rules.rule import RuleInput
from gpufleet.rules.selection import rule_groups

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "gpufleet"
MANIFESTS = ROOT / "deploy" / "kubernetes"
NAMESPACE = "gpufleet"
KUBERNETES = "1.30.0"

VARIANTS = {
    "tier-1": ["tier=1"],
    "tier-2": ["tier=2"],
    "tier-3": ["tier=3", "agent.runtimeClassName=nvidia"],
    "tier-3-holders": [
        *("tier=3", "agent.runtimeClassName=nvidia", "agent.holders.pods=true", "agent.holders.processes=true"),
        "agent.hostState=/var/lib/gpufleet",
    ],
}
"""Manifest to its values, in addition to those of `values.yaml`."""


def rule_files() -> Iterator[tuple[Path, str]]:
    """Yield the rule files of the chart with their content. Its PodMonitors have `honorLabels`."""
    folder = CHART / "files" / "rules"
    for source in RuleInput:
        yield folder / f"{source}.yaml", render_rules(rule_groups({source}), RulesFormat.PROMETHEUS)
    short = rule_groups({RuleInput.NATIVE}, honor_labels=True)
    yield folder / f"{RuleInput.NATIVE}-honor-labels.yaml", render_rules(short, RulesFormat.PROMETHEUS)


def manifests(helm: Path) -> Iterator[tuple[Path, str]]:
    """Yield the plain manifests with their content, rendered by `helm`."""
    for name, values in VARIANTS.items():
        command: list[Path | str] = [
            helm,
            "template",
            "gpufleet",
            CHART,
            "--namespace",
            NAMESPACE,
            "--kube-version",
            KUBERNETES,
        ]
        command += ["--values", MANIFESTS / "values.yaml", "--set", ",".join(values)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        lines = [line for line in done.stdout.splitlines() if line.strip() and not _is_of_helm(line)]
        head = f"# {name}: rendered from deploy/helm/gpufleet by `make manifests`; do not edit. See README.md."
        yield MANIFESTS / f"{name}.yaml", "\n".join([head, *lines]) + "\n"


def _is_of_helm(line: str) -> bool:
    """Return whether a line is only about the chart: where it came from, or a label of Helm."""
    return bool(re.fullmatch(r"# Source: .*|\s+(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*", line))


def main() -> None:
    """Write all files."""
    for path, content in [*rule_files(), *manifests(Path(sys.argv[1]))]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        print(path.relative_to(ROOT))  # noqa: T201 - a command's output


if __name__ == "__main__":
    main()
