"""`gpufleet contract`: shows the adoption contract, and checks a file with one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpufleet.cli.options import Json

contract_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and check the adoption contract.")


@contract_app.command()
def lint(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="YAML file [default: the contract of this version].")
    ] = None,
    json: Json = False,
) -> None:
    """Check a contract. Exits with 2 and all problems: file, line, item, field, and what to write."""
    import msgspec

    from gpufleet.cli.output import write_json
    from gpufleet.wiring.contract import CONTRACT_NAME, load_contract, read_contract

    name = CONTRACT_NAME if file is None else str(file)
    if not json:
        contract = load_contract(file)
        print(f"{name}: {len(contract.items)} items, version {' and '.join(contract.versions)}, valid")
        return
    found, problems = read_contract(file)
    items = None if found is None else len(found.items)
    write_json(msgspec.json.encode({"file": name, "items": items, "problems": problems}))
    if problems:
        raise typer.Exit(2)


@contract_app.command()
def show(
    output_format: Annotated[
        Literal["table", "json", "md"],
        typer.Option("--format", help="A table, the items as JSON, or the page docs/contract.md."),
    ] = "table",
) -> None:
    """Show the contract of this version."""
    import msgspec

    from gpufleet.cli.output import print_tables, write_json
    from gpufleet.cli.table import TextColumn, TextTable
    from gpufleet.fleet.contract.reference import render_contract
    from gpufleet.wiring.contract import load_contract

    contract = load_contract()
    if output_format == "json":
        write_json(msgspec.json.format(msgspec.json.encode(contract), indent=2))
        return
    if output_format == "md":
        print(render_contract(contract), end="")
        return
    columns = (
        TextColumn("item"),
        TextColumn("level"),
        TextColumn("tiers", rank=2),
        TextColumn("on", rank=3),
        TextColumn("title", wrap=True),
        TextColumn("owner", wide=True),
        TextColumn("check", wide=True),
    )
    rows = [
        (one.id, one.level, ",".join(str(int(t)) for t in one.tiers), one.on, one.title, one.owner, one.check)
        for one in contract.items
    ]
    print_tables([TextTable(columns, rows, "items"), f"version {' and '.join(contract.versions)}"])
