"""A series of another system: a name and labels, before anything of ours is known of it."""

FORWARDED = "forwarded_by"
"""A label of series that a hub has passed on to a database: no hub takes them in again."""


class Series:
    """One series. A decoder gives the same object for the same series of later bodies of one source.

    Attributes:
        name: of the metric.
        labels: in the order in which they came; control characters are taken out.
        mark: the decoder's own note.
        meaning: a reader's own note: what it found the series to mean, which its values do not change.
    """

    __slots__ = ("labels", "mark", "meaning", "name")

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self.name = name
        self.labels = labels
        self.mark = 0
        self.meaning: object = None

    def __repr__(self) -> str:
        """Show it as the text format writes it."""
        return self.name + "{" + ",".join(f"{name}={value!r}" for name, value in self.labels.items()) + "}"
