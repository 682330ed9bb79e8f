"""SQL for tests that read tables with subject numbers."""

SUBJECTS_OF_CLUSTER = "subject IN (SELECT number FROM subjects WHERE cluster = {cluster:String})"
SUBJECTS_OF_MACHINE = (
    "subject IN (SELECT number FROM subjects WHERE cluster = {cluster:String} AND machine = {machine:String})"
)


def named(table: str) -> str:
    """Return the source of a table's rows, not collapsed, with the columns of their subjects."""
    return f"{table} INNER JOIN subjects ON {table}.subject = subjects.number"


COUNT_SAMPLES = f"SELECT count(), uniqExact(machine, view, reader, lane, measured_at) FROM {named('samples')}"
"""Query for the number of samples, and that of distinct ones."""
