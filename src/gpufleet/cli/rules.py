"""`gpufleet rules`: prints recording rules and alerts for Prometheus."""

from typing import Annotated, Literal

import typer

from gpufleet.cli.init import STDOUT, Force, Output, write_output
from gpufleet.cli.options import CommandError

rules_app = typer.Typer(no_args_is_help=True)


@rules_app.callback()
def rules() -> None:
    """Print recording rules and alerts for Prometheus."""


@rules_app.command("print")
def print_rules(
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="INPUT",
            help="Exporters that Prometheus scrapes: native (gpufleet agents), dcgm-exporter, kubevirt "
            "(kube-state-metrics and KubeVirt). May be repeated, or separated by commas.",
        ),
    ] = None,
    only: Annotated[
        Literal["recording", "alerts"] | None, typer.Option(help="Only these rules; alerts need the recording rules.")
    ] = None,
    output_format: Annotated[
        Literal["prometheus", "prometheusrule"],
        typer.Option("--format", help="A rule file of Prometheus, or an object of the Prometheus Operator."),
    ] = "prometheus",
    output: Output = STDOUT,
    force: Force = False,
) -> None:
    """Print recording rules and alerts as YAML."""
    from gpufleet.rules.render import RulesFormat, render_rules
    from gpufleet.rules.rule import RuleInput
    from gpufleet.rules.selection import rule_groups

    names = [name.strip() for text in source or ["native"] for name in text.split(",")]
    unknown = [name for name in names if name not in tuple(RuleInput)]
    if unknown:
        raise CommandError(f"--input: unknown input {unknown[0]!r}: use {', '.join(RuleInput)}")
    groups = rule_groups({RuleInput(name) for name in names}, recording=only != "alerts", alerts=only != "recording")
    write_output(render_rules(groups, RulesFormat(output_format)), output, force=force)
