"""SQL statements that create and migrate tables. Pure."""

from gpufleet.stores.clickhouse.schema.tables import (
    BUSY_TABLES,
    DEDUPLICATION_WINDOW,
    MERGE_SETTINGS,
    WIDE_PART_BYTES,
    Column,
    Engine,
    TableDefinition,
)


def render_column(column: Column) -> str:
    """Return the column definition for CREATE and ALTER."""
    codec = f" CODEC({column.codec})" if column.codec else ""
    return f"`{column.name}` {column.type}{codec}"


def _render_index(column: str, kind: str) -> str:
    return f"INDEX `{column}` `{column}` TYPE {kind} GRANULARITY 1"


def render_create(table: TableDefinition, engine: Engine = Engine.PLAIN) -> str:
    """Return the statement that creates the table if it does not exist."""
    replicated = engine is Engine.REPLICATED
    window = "replicated_deduplication_window" if replicated else "non_replicated_deduplication_window"
    settings = {
        "index_granularity": 512 if table.lookup else 8192,
        **part_settings(table),
        window: DEDUPLICATION_WINDOW,
        "fsync_after_insert": 1,
        "fsync_part_directory": 1,
    }
    indexes = [
        *(_render_index(column, "bloom_filter(0.01)") for column in table.searched),
        *(_render_index(column, "minmax") for column in table.ranged),
    ]
    clauses = [
        f"CREATE TABLE IF NOT EXISTS {table.name} (",
        ",\n".join(f"    {line}" for line in (*map(render_column, table.columns), *indexes)),
        f") ENGINE = {'Replicated' if replicated else ''}ReplacingMergeTree({table.version})",
        *([f"PARTITION BY {table.partition}"] if table.partition else []),
        f"ORDER BY ({', '.join(table.key)})",
        "SETTINGS " + ", ".join(f"{name} = {value}" for name, value in settings.items()),
    ]
    return "\n".join(clauses)


def part_settings(table: TableDefinition) -> dict[str, int]:
    """Return the settings of a table's parts and merges."""
    wide = 1 << 40 if table.lookup else WIDE_PART_BYTES
    return {"min_bytes_for_wide_part": wide, **(MERGE_SETTINGS if table.name in BUSY_TABLES else {})}


def render_part_settings(table: TableDefinition) -> list[str]:
    """Return the settings of a table's parts and merges as in its definition."""
    return [f"{name} = {number}" for name, number in part_settings(table).items()]


def render_parts(table: TableDefinition) -> str:
    """Return the statement that changes the settings of a table's parts and merges."""
    return f"ALTER TABLE {table.name} MODIFY SETTING {', '.join(render_part_settings(table))}"


def render_alters(table: TableDefinition, present: dict[str, str]) -> list[str]:
    """Return statements that add missing columns and extend enumerations with new names.

    Args:
        table: the table of this build.
        present: name to type of the existing columns. Columns that `table` does not define are ignored.
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
