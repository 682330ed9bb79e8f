"""Construction of the daemons from their configuration, and literal registries. One module per daemon."""
