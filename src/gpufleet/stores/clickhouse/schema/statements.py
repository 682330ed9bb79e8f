"""Tables as statements that make them and bring older ones forward. Pure."""

from gpufleet.stores.clickhouse.schema.tables import (
    DEDUPLICATION_WINDOW,
    MERGE_SETTING,
    PARTS_A_MERGE,
    Column,
    Engine,
    Table,
)


def render_column(column: Column) -> str:
    """Return the column as CREATE and ALTER take it."""
    codec = f" CODEC({column.codec})" if column.codec else ""
    return f"`{column.name}` {column.type}{codec}"


def render_create(table: Table, engine: Engine = Engine.PLAIN) -> str:
    """Return the statement that makes the table where it is missing."""
    replicated = engine is Engine.REPLICATED
    window = "replicated_deduplication_window" if replicated else "non_replicated_deduplication_window"
    settings = {
        "index_granularity": 512 if table.lookup else 8192,
        **({"min_bytes_for_wide_part": 1 << 40} if table.lookup else {}),
        window: DEDUPLICATION_WINDOW,
        "fsync_after_insert": 1,
        "fsync_part_directory": 1,
    }
    clauses = [
        f"CREATE TABLE IF NOT EXISTS {table.name} (",
        ",\n".join(f"    {render_column(column)}" for column in table.columns),
        f") ENGINE = {'Replicated' if replicated else ''}ReplacingMergeTree({table.version})",
        *([f"PARTITION BY {table.partition}"] if table.partition else []),
        f"ORDER BY ({', '.join(table.key)})",
        "SETTINGS " + ", ".join(f"{name} = {value}" for name, value in settings.items()),
    ]
    return "\n".join(clauses)


def render_merging(table: str) -> str:
    """Return the statement that has a table's parts merged `PARTS_A_MERGE` at a time."""
    return f"ALTER TABLE {table} MODIFY SETTING {MERGE_SETTING} = {PARTS_A_MERGE}"


def render_compression(table: Table, column: str) -> str:
    """Return the statement that has what is written to a column from now on compressed as this build has it."""
    codec = next(one.codec for one in table.columns if one.name == column)
    return f"ALTER TABLE {table.name} MODIFY COLUMN `{column}` CODEC({codec})"


def render_alters(table: Table, present: dict[str, str]) -> list[str]:
    """Return what brings an older table to this build: columns are added, enumerations that gained names widened.

    Args:
        table: as this build wants it.
        present: name to type of the columns that are there. What the table does not name is left alone.
    """
    statements = []
    before = ""
    for column in table.columns:
        where = f" AFTER `{before}`" if before else " FIRST"
        if column.name not in present:
            statements.append(f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {render_column(column)}{where}")
        elif "Enum8(" in column.type and present[column.name] != column.type:
            statements.append(f"ALTER TABLE {table.name} MODIFY COLUMN {render_column(column)}")
        before = column.name
    return statements
