"""Tables, their SQL statements, migrations and column encodings."""
