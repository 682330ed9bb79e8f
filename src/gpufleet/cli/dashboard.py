"""`gpufleet dashboard`: prints dashboards for Grafana."""

from typing import Annotated, Literal

import typer

from gpufleet.cli.init import STDOUT, Force, Output, write_output

dashboard_app = typer.Typer(no_args_is_help=True)


@dashboard_app.callback()
def dashboard() -> None:
    """Print dashboards for Grafana."""


@dashboard_app.command()
def render(
    dialect: Annotated[
        Literal["native", "dcgm"], typer.Option(help="Metric names in its queries: native, or those of dcgm-exporter.")
    ] = "native",
    output: Output = STDOUT,
    force: Force = False,
) -> None:
    """Print a dashboard as JSON for import into Grafana (Dashboards, New, Import)."""
    from gpufleet.dashboards.dcgm import dcgm_dashboard
    from gpufleet.dashboards.grafana import render_grafana
    from gpufleet.dashboards.native import native_dashboard

    model = native_dashboard() if dialect == "native" else dcgm_dashboard()
    write_output(render_grafana(model), output, force=force)
