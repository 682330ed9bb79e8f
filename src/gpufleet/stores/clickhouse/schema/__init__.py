"""Tables, their statements, migrations, and the column encodings."""
