"""Literal registries, and construction from configuration. Each file puts one daemon together."""
