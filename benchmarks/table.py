"""Small tables on standard output."""


class Table:
    """Table of texts with a title and fitted column widths."""

    def __init__(self, title: str, *columns: str) -> None:
        self._title = title
        self._rows: list[tuple[str, ...]] = [columns]

    def row(self, *cells: str) -> None:
        """Add a row with one cell per column."""
        assert len(cells) == len(self._rows[0])
        self._rows.append(cells)

    def print(self) -> None:
        """Print the table."""
        widths = [max(len(row[column]) for row in self._rows) for column in range(len(self._rows[0]))]
        print(f"\n{self._title}")
        for index, row in enumerate(self._rows):
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            if index == 0:
                print("  " + "  ".join("-" * width for width in widths))
