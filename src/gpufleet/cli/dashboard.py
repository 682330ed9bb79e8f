"""`gpufleet dashboard`: dashboards for Grafana."""

from typing import Annotated, Literal

import typer

from gpufleet.cli.init import STDOUT, Force, Output, write_output

dashboard_app = typer.Typer(no_args_is_help=True)


@dashboard_app.callback()
def dashboard() -> None:
    """Dashboards for Grafana."""


@dashboard_app.command()
def render(
    dialect: Annotated[
        Literal["native", "dcgm"], typer.Option(help="Whose names its queries have: ours, or dcgm-exporter's.")
    ] = "native",
    output: Output = STDOUT,
    force: Force = False,
) -> None:
    """Print a dashboard as JSON, to be imported into Grafana (Dashboards, New, Import)."""
    from gpufleet.dashboards.dcgm import dcgm_dashboard
    from gpufleet.dashboards.grafana import render_grafana
    from gpufleet.dashboards.native import native_dashboard

    made = native_dashboard() if dialect == "native" else dcgm_dashboard()
    write_output(render_grafana(made), output, force=force)
