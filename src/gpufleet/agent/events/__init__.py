"""Events: derived from readings, grouped, counted and saved."""
