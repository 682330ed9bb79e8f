"""From DCGM's fields to the catalogue: one file a group of fields. The only place that knows DCGM's units."""
