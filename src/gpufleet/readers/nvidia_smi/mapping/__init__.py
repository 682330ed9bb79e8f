"""Mapping of nvidia-smi's texts to the catalogue: one table for CSV, XML and `-q`; converts its units."""
