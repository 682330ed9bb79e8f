"""Minutes and hours made of the samples, an hour at a time, from all of its samples."""
