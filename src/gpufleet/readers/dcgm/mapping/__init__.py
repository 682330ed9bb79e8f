"""Mapping of DCGM fields to the catalogue, one module per group of fields; converts DCGM's units."""
