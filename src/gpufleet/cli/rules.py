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
    honor_labels: Annotated[
        bool,
        typer.Option(
            "--honor-labels",
            help="Print shorter rules, for agents that are all scraped with `honor_labels: true`.",
        ),
    ] = False,
    runbook_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Address at which you publish docs/runbooks.md: alerts link their section of it in `runbook_url`.",
        ),
    ] = "",
    output: Output = STDOUT,
    force: Force = False,
) -> None:
    """Print recording rules and alerts as YAML."""
    from gpufleet.rules.render import RUNBOOK_URL, RulesFormat, render_rules
    from gpufleet.rules.rule import RuleInput
    from gpufleet.rules.selection import rule_groups

    names = [name.strip() for text in source or ["native"] for name in text.split(",")]
    unknown = [name for name in names if name not in tuple(RuleInput)]
    if unknown:
        raise CommandError(f"--input: unknown input {unknown[0]!r}: use {', '.join(RuleInput)}")
    if honor_labels and RuleInput.NATIVE not in names:
        raise CommandError("--honor-labels changes only the rules of the input native: add it to --input")
    if runbook_url and not RUNBOOK_URL.fullmatch(runbook_url):
        raise CommandError(f"--runbook-url: {runbook_url!r} is no URL of a page: use http:// or https://, without '#'")
    groups = rule_groups(
        {RuleInput(name) for name in names},
        recording=only != "alerts",
        alerts=only != "recording",
        honor_labels=honor_labels,
    )
    write_output(render_rules(groups, RulesFormat(output_format), runbook_url=runbook_url), output, force=force)
