"""Other projects' metric names and the catalogue. One file a project; `dialect.py` says what such a file holds."""
